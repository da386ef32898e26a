/*
 * block_shuffle.c: the node that reads a table's blocks, runs of neighbouring pages, in random order.
 *
 * After the CorgiPile paper, section 5.2. Filters, among them those of row-level security, are evaluated here as in any
 * scan. Over partitions one node draws the blocks of all of them, in one order, from a node for each.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "commands/explain.h"
#if PG_VERSION_NUM >= 180000
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#endif
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "pages.h"

#define SAMPLED 16				/* pages that tell how large rows are */

typedef struct BlockShuffle
{
	CustomScanState css;
	/* over blocks, its own or those of its partitions */
	struct BlockShuffle **leaves;
	PlanState **sources;		/* the leaves as plans; one may have a constant filter above it */
	int			leaf_count;
	uint32	   *order;
	uint32		blocks;
	uint32		next;
	uint32		foretold;
	int			current;		/* the leaf that is read, or -1 */
	uint64		pass;
	uint64		loaded;			/* pages of this pass so far */
	Shuffle		shuffle;
	uint64		seed;
	/* over a table */
	Pages		read;
	uint32		leaf_blocks;
	bool		driven;			/* told which block to read by the node above */
	uint32		told;
} BlockShuffle;

static Node *create_state(CustomScan *plan);
static void begin(CustomScanState *node, EState *estate, int eflags);
static TupleTableSlot *next_row(CustomScanState *node);
static void end(CustomScanState *node);
static void rescan(CustomScanState *node);
static void explain(CustomScanState *node, List *ancestors, ExplainState *es);

CustomScanMethods block_shuffle_methods = {
	.CustomName = "BlockShuffle",
	.CreateCustomScanState = create_state,
};

static CustomExecMethods methods = {
	.CustomName = "BlockShuffle",
	.BeginCustomScan = begin,
	.ExecCustomScan = next_row,
	.EndCustomScan = end,
	.ReScanCustomScan = rescan,
	.ExplainCustomScan = explain,
};

static Node *
create_state(CustomScan *plan)
{
	BlockShuffle *state = (BlockShuffle *) newNode(sizeof(BlockShuffle), T_CustomScanState);

	state->css.methods = &methods;
	state->current = -1;
	return (Node *) state;
}

/* The node of this file that a plan is or has right below it, else NULL. */
static BlockShuffle *
found_in(PlanState *state)
{
	while (state != NULL && IsA(state, ResultState))
		state = outerPlanState(state);
	if (state != NULL && IsA(state, CustomScanState) && ((CustomScanState *) state)->methods == &methods)
		return (BlockShuffle *) state;
	return NULL;
}

static void
begin(CustomScanState *node, EState *estate, int eflags)
{
	BlockShuffle *state = (BlockShuffle *) node;
	CustomScan *plan = (CustomScan *) node->ss.ps.plan;
	Relation	table = node->ss.ss_currentRelation;
	ListCell   *cell;

	if (table != NULL)
	{
		/* The slots that the server made for us are virtual ones; ours hold rows of pages, deformed as needed. */
		ExecInitScanTupleSlot(estate, &node->ss, RelationGetDescr(table), table_slot_callbacks(table)
#if PG_VERSION_NUM >= 190000
							  ,0
#endif
			);
		node->ss.ps.subPlan = NIL;
		node->ss.ps.qual = ExecInitQual(plan->scan.plan.qual, &node->ss.ps);
		ExecAssignScanProjectionInfo(&node->ss);
		state->read.table = table;
		state->read.snapshot = estate->es_snapshot;
		state->read.context = estate->es_query_cxt;
		state->read.count = RelationGetNumberOfBlocks(table);
		state->read.loaded = &state->loaded;
		state->leaf_count = 1;
		state->leaves = palloc(sizeof(BlockShuffle *));
		state->leaves[0] = state;
		return;
	}
	state->leaf_count = list_length(plan->custom_plans);
	state->leaves = palloc(sizeof(BlockShuffle *) * state->leaf_count);
	state->sources = palloc(sizeof(PlanState *) * state->leaf_count);
	foreach(cell, plan->custom_plans)
	{
		PlanState  *child = ExecInitNode(lfirst(cell), estate, eflags);
		BlockShuffle *leaf = found_in(child);

		if (leaf == NULL)
			elog(ERROR, "a partition is not read in blocks");
		leaf->driven = true;
		leaf->read.loaded = &state->loaded;
		node->custom_ps = lappend(node->custom_ps, child);
		state->sources[foreach_current_index(cell)] = child;
		state->leaves[foreach_current_index(cell)] = leaf;
	}
}

bool
block_shuffle_pages(PlanState *source, int64 *pages)
{
	BlockShuffle *state = found_in(source);

	*pages = 0;
	if (state == NULL)
		return false;
	for (int i = 0; i < state->leaf_count; i++)
		*pages += state->leaves[i]->read.count;
	return true;
}

/* Settles how large blocks are and what order they come in. */
void
block_shuffle_settle(PlanState *source, const Options *options, BlockNumber block_pages, uint32 parts)
{
	BlockShuffle *state = found_in(source);

	if (state == NULL)
		return;
	state->shuffle = options->shuffle;
	state->seed = options->seed;
	state->blocks = 0;
	for (int i = 0; i < state->leaf_count; i++)
	{
		BlockShuffle *leaf = state->leaves[i];

		leaf->read.in_order = options->shuffle == SHUFFLE_NONE;
		leaf->read.block_pages = block_pages;
		leaf->read.parts = parts;
		leaf->leaf_blocks = pages_blocks(&leaf->read);
		state->blocks += leaf->leaf_blocks;
	}
}

/* The count of pages whose rows have been begun in this pass; NULL where rows are no table's. */
const uint64 *
block_shuffle_loaded(PlanState *source)
{
	BlockShuffle *state = found_in(source);

	return state ? &state->loaded : NULL;
}

bool
block_shuffle_last(PlanState *source, ItemPointer tid, const char **table)
{
	BlockShuffle *state = found_in(source);

	if (state == NULL || state->current < 0)
		return false;
	state = state->leaves[state->current];
	*tid = state->css.ss.ss_ScanTupleSlot->tts_tid;
	*table = RelationGetRelationName(state->css.ss.ss_currentRelation);
	return true;
}

bool
block_shuffle_place(PlanState *source, uint64 *place)
{
	BlockShuffle *state = found_in(source);
	ItemPointer tid;

	if (state == NULL || state->current < 0)
		return false;
	tid = &state->leaves[state->current]->css.ss.ss_ScanTupleSlot->tts_tid;
	*place = (uint64) state->current << 48 ^ (uint64) ItemPointerGetBlockNumberNoCheck(tid) << 16 ^ ItemPointerGetOffsetNumberNoCheck(tid);
	return true;
}

static void
draw_order(BlockShuffle *state)
{
	MemoryContext before = MemoryContextSwitchTo(state->css.ss.ps.state->es_query_cxt);

	if (state->order == NULL)
		state->order = palloc_extended(sizeof(uint32) * Max(state->blocks, 1), MCXT_ALLOC_HUGE);
	for (uint32 i = 0; i < state->blocks; i++)
		state->order[i] = i;
	if (state->shuffle != SHUFFLE_NONE)
		shuffle_order(state->order, state->blocks, mixed_seed(state->seed, state->pass, 0));
	MemoryContextSwitchTo(before);
}

/* Finds the leaf and the block in it that a number from the order stands for. */
static int
locate(BlockShuffle *state, uint32 *block)
{
	int			i = 0;

	while (*block >= state->leaves[i]->leaf_blocks)
		*block -= state->leaves[i++]->leaf_blocks;
	return i;
}

/* The next row of a leaf's blocks that passes the filters; NULL at their end. */
static TupleTableSlot *
row_of_leaf(BlockShuffle *leaf)
{
	ScanState  *ss = &leaf->css.ss;
	ExprContext *econtext = ss->ps.ps_ExprContext;
	TupleTableSlot *slot = ss->ss_ScanTupleSlot;

	while (pages_next(&leaf->read, slot))
	{
		ResetExprContext(econtext);
		econtext->ecxt_scantuple = slot;
		if (ss->ps.qual == NULL || ExecQual(ss->ps.qual, econtext))
			return ss->ps.ps_ProjInfo ? ExecProject(ss->ps.ps_ProjInfo) : slot;
		InstrCountFiltered1(ss, 1);
	}
	return NULL;
}

/*
 * Visits the rows of some pages from all over a table, before any block is read; returns how many pages that were.
 */
int64
block_shuffle_sample(PlanState *source, void (*visit) (void *argument, TupleTableSlot *slot), void *argument)
{
	BlockShuffle *state = found_in(source);
	int64		pages,
				sampled;

	if (!block_shuffle_pages(source, &pages))
		return 0;
	sampled = Min(SAMPLED, pages);
	for (int i = 0; i < state->leaf_count; i++)
	{
		state->leaves[i]->read.block_pages = state->leaves[i]->read.parts = 1;
		state->leaves[i]->leaf_blocks = pages_blocks(&state->leaves[i]->read);
	}
	for (int64 i = 0; i < sampled; i++)
	{
		uint32		page = pages * i / sampled;
		BlockShuffle *leaf = state->leaves[locate(state, &page)];
		TupleTableSlot *slot;

		leaf->told = page;
		pages_open(&leaf->read, &leaf->told, 1);
		while ((slot = row_of_leaf(leaf)) != NULL)
			visit(argument, slot);
	}
	for (int i = 0; i < state->leaf_count; i++)
	{
		BlockShuffle *leaf = state->leaves[i];

		leaf->read.blocks_read = 0;
		if (leaf->css.ss.ps.instrument)
			leaf->css.ss.ps.instrument->nfiltered1 = 0;
	}
	state->loaded = 0;
	return sampled;
}

static TupleTableSlot *
next_row(CustomScanState *node)
{
	BlockShuffle *state = (BlockShuffle *) node;

	if (state->driven)
		return row_of_leaf(state);
	if (state->order == NULL)
		draw_order(state);
	if (state->sources == NULL)
	{
		if (state->current < 0)
			pages_open(&state->read, state->order, state->blocks);
		state->current = 0;
		return row_of_leaf(state);
	}
	for (;;)
	{
		TupleTableSlot *slot;

		if (state->current < 0)
		{
			uint32		block;
			BlockShuffle *leaf;

			if (state->next >= state->blocks)
				return NULL;
			block = state->order[state->next++];
			state->current = locate(state, &block);
			leaf = state->leaves[state->current];
			leaf->told = block;
			pages_open(&leaf->read, &leaf->told, 1);
			state->foretold = Max(state->foretold, state->next);
			while (state->foretold < Min(state->next + pages_foresight(&leaf->read), state->blocks))
			{
				block = state->order[state->foretold++];
				pages_foretell(&state->leaves[locate(state, &block)]->read, block);
			}
		}
		slot = ExecProcNode(state->sources[state->current]);
		if (!TupIsNull(slot))
			return slot;
		state->current = -1;
	}
}

static void
rescan(CustomScanState *node)
{
	BlockShuffle *state = (BlockShuffle *) node;
	ListCell   *cell;

	state->pass++;
	state->loaded = 0;
	state->next = state->foretold = 0;
	state->current = -1;
	ExecClearTuple(node->ss.ss_ScanTupleSlot);
	if (state->order)
		draw_order(state);
	foreach(cell, node->custom_ps)
	{
		PlanState  *child = lfirst(cell);

		UpdateChangedParamSet(child, node->ss.ps.chgParam);
		ExecReScan(child);
	}
}

static void
end(CustomScanState *node)
{
	BlockShuffle *state = (BlockShuffle *) node;
	ListCell   *cell;

	ExecClearTuple(node->ss.ss_ScanTupleSlot);
	pages_close(&state->read);
	foreach(cell, node->custom_ps)
		ExecEndNode(lfirst(cell));
}

static void
explain(CustomScanState *node, List *ancestors, ExplainState *es)
{
	BlockShuffle *state = (BlockShuffle *) node;
	uint64		read = 0;

	if (state->driven)
	{
		ExplainPropertyUInteger("Blocks", NULL, state->leaf_blocks, es);
		return;
	}
	for (int i = 0; i < state->leaf_count; i++)
		read += state->leaves[i]->read.blocks_read;
	ExplainPropertyText("Order", state->shuffle == SHUFFLE_NONE ? "as stored" : "random, new in each epoch", es);
	ExplainPropertyUInteger("Blocks", NULL, state->blocks, es);
	if (state->leaves[0]->read.parts > 1)
		ExplainPropertyUInteger("Blocks per Page", NULL, state->leaves[0]->read.parts, es);
	else
		ExplainPropertyUInteger("Block Size", "kB", state->leaves[0]->read.block_pages * (uint64) (BLCKSZ / 1024), es);
	if (es->analyze)
		ExplainPropertyUInteger("Blocks Read", NULL, read, es);
}
