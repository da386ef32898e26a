/*
 * tuple_shuffle.c: the node that packs rows as float32 into windows, whose rows are then shuffled.
 *
 * After the CorgiPile paper, sections 5.2 and 5.3. Two windows make up the buffer and never take more than it. Rows come
 * from below one by one, and leave as a window, as a hash table leaves a Hash node: SGD takes them by tuple_shuffle_next.
 * A window ends on a whole number of batches. Rows that cannot be learnt from are refused by their place in the table.
 */
#include "postgres.h"

#include <math.h>

#include "commands/explain.h"
#if PG_VERSION_NUM >= 180000
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#endif
#include "executor/instrument.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "tuple_shuffle.h"

#define UNSHUFFLED (1 << 19)	/* words that are learnt from at once where nothing is shuffled: they stay in the cache */
#define ROOM 0.95				/* of a window that is counted on, as rows differ */

static Node *create_state(CustomScan *plan);
static void begin(CustomScanState *node, EState *estate, int eflags);
static TupleTableSlot *no_rows(CustomScanState *node);
static void end(CustomScanState *node);
static void rescan(CustomScanState *node);
static void explain(CustomScanState *node, List *ancestors, ExplainState *es);

CustomScanMethods tuple_shuffle_methods = {
	.CustomName = "TupleShuffle",
	.CreateCustomScanState = create_state,
};

static CustomExecMethods methods = {
	.CustomName = "TupleShuffle",
	.BeginCustomScan = begin,
	.ExecCustomScan = no_rows,
	.EndCustomScan = end,
	.ReScanCustomScan = rescan,
	.ExplainCustomScan = explain,
};

static Node *
create_state(CustomScan *plan)
{
	TupleShuffle *state = (TupleShuffle *) newNode(sizeof(TupleShuffle), T_CustomScanState);

	state->css.methods = &methods;
	return (Node *) state;
}

static TupleTableSlot *
no_rows(CustomScanState *node)
{
	elog(ERROR, "TupleShuffle gives windows of rows, not rows");
	return NULL;
}

static void
begin(CustomScanState *node, EState *estate, int eflags)
{
	TupleShuffle *state = (TupleShuffle *) node;
	CustomScan *plan = (CustomScan *) node->ss.ps.plan;
	PlanState  *child = ExecInitNode(linitial(plan->custom_plans), estate, eflags);
	ListCell   *cell;

	node->custom_ps = list_make1(child);
	state->options = read_options(strVal(linitial(plan->custom_private)));
	state->sparse = intVal(lsecond(plan->custom_private));
	state->weighted = list_length(plan->custom_exprs) == 3 + state->sparse;
	/* Rows from below come in slots of any kind. */
	node->ss.ps.scanopsset = true;
	node->ss.ps.scanopsfixed = false;
	node->ss.ps.scanops = NULL;
	foreach(cell, plan->custom_exprs)
	{
		Expr	   *expression = lfirst(cell);
		Argument   *argument = &state->arguments[foreach_current_index(cell) + (state->sparse ? 0 : 1)];

		if (IsA(expression, Var) && ((Var *) expression)->varattno > 0)
			argument->column = ((Var *) expression)->varattno;
		else
			argument->expression = ExecInitExpr(expression, &node->ss.ps);
	}
	state->buffers = AllocSetContextCreate(estate->es_query_cxt, "penstock buffers", ALLOCSET_DEFAULT_SIZES);
	sizes_guess(state, child);
	if (state->loaded == NULL && state->options->shuffle != SHUFFLE_NONE && !(eflags & EXEC_FLAG_EXPLAIN_ONLY))
		ereport(WARNING,
				(errmsg("rows of this query are shuffled in a buffer of " INT64_FORMAT " kB only: they are not a table's, "
						"which would be read in random blocks", state->buffer_bytes / 1024)));
}

/*
 * Windows end such that all of a pass are about equal. Filled to the brim they would leave a last one of a block or two, all
 * of one label in a clustered table, and a model that has learnt those last. How many pages a table has is known exactly, so a
 * window ends with one of them. How many rows another plan gives is not known: the planner's guess may be far off. There a
 * window is filled to the brim, and waits until the next one is half full; if none gets so far, the two last are made equal.
 */
static void
plan_window(TupleShuffle *state)
{
	double		left = Max((double) state->pages * state->parts - state->begun, 0),
				words = *state->loaded ? state->words / *state->loaded : state->page_words / state->parts;

	state->target = state->begun + ceil(left / Max(ceil(left * words / (ROOM * state->buffer_bytes / 2 / sizeof(float))), 1));
}

static bool
is_full(TupleShuffle *state, const Window *window)
{
	if (window->rows == 0 || window->rows % state->options->batch_size != 0)
		return false;
	if (state->options->shuffle != SHUFFLE_CORGIPILE)
		return window->used >= UNSHUFFLED;
	if (state->loaded == NULL || *state->loaded <= state->target)
		return false;
	/* The rows of a page were a guess by a few of them. By now there are as many pages as the guess asked for. */
	plan_window(state);
	return *state->loaded > state->target;
}

static Window *
finished(TupleShuffle *state, PlanState *node, Window *window)
{
	if (node->instrument)
		InstrStopNode(node->instrument, window->rows);
	if (window->rows == 0)
		return NULL;
	state->top = Max(state->top, window->top);
	window->shuffled = state->options->shuffle == SHUFFLE_CORGIPILE;
	window->seed = mixed_seed(state->options->seed, state->pass, ++state->window_count);
	state->smallest = state->window_count == 1 ? window->rows : Min(state->smallest, window->rows);
	state->largest = Max(state->largest, window->rows);
	return window;
}

/* Begins the other window, when it has been learnt from; what does not fill a batch goes there. */
static Window *
turn_over(TupleShuffle *state, bool carry)
{
	Window	   *window = &state->windows[state->filling],
			   *other = &state->windows[1 - state->filling];

	state->waited += worker_give(state->worker, NULL);
	other->used = other->rows = 0;
	other->top = window->top;
	if (carry)
		carry_over(state, window, other);
	state->filling = 1 - state->filling;
	return other;
}

Window *
tuple_shuffle_next(PlanState *node)
{
	TupleShuffle *state = (TupleShuffle *) node;
	PlanState  *child = linitial(state->css.custom_ps);
	ExprContext *econtext = node->ps_ExprContext;
	Window	   *window,
			   *full;
	bool		waits;

	if (state->exhausted && !state->remains)
		return NULL;
	if (node->instrument)
		InstrStartNode(node->instrument);
	if (state->remains)
	{
		state->remains = false;
		return finished(state, node, &state->windows[state->filling]);
	}
	if (!state->settled)
		sizes_settle(state, child);
	waits = state->loaded == NULL && state->options->shuffle == SHUFFLE_CORGIPILE;
	if (state->loaded)
	{
		state->begun = *state->loaded;
		plan_window(state);
	}
	window = &state->windows[state->filling];
	for (;;)
	{
		TupleTableSlot *slot = state->left ? state->left : ExecProcNode(child);
		Size		used = window->used;
		MemoryContext before;
		bool		packed;

		state->left = NULL;
		if (TupIsNull(slot))
		{
			state->exhausted = true;
			full = state->full;
			if (full == NULL)
				return finished(state, node, window);
			state->full = NULL;
			even_out(state, full, window);
			state->remains = true;
			return finished(state, node, full);
		}
		CHECK_FOR_INTERRUPTS();
		ResetExprContext(econtext);
		econtext->ecxt_scantuple = slot;
		before = MemoryContextSwitchTo(econtext->ecxt_per_tuple_memory);
		packed = pack_row(state, window, slot, econtext);
		MemoryContextSwitchTo(before);
		if (!packed)
		{
			/* The row is packed again, into the other window, which must be free for that. */
			state->left = slot;
			full = state->full;
			if (full == NULL)
			{
				full = window;
				window = turn_over(state, true);
				if (window->used + state->row_words + window->rows > window->capacity)
					refuse_size(state);
				if (waits)
				{
					state->full = full;
					continue;
				}
			}
			state->full = NULL;
			return finished(state, node, full);
		}
		state->seen++;
		state->words += window->used - used + 1;
		if (is_full(state, window))
		{
			full = window;
			turn_over(state, false);
			return finished(state, node, full);
		}
		if (state->full && window->used + window->rows >= window->capacity / 2 && window->rows >= state->options->batch_size)
		{
			full = state->full;
			state->full = NULL;
			return finished(state, node, full);
		}
	}
}

void
tuple_shuffle_keep(PlanState *node)
{
	TupleShuffle *state = (TupleShuffle *) node;

	state->keeping = true;
	sample_start(&state->sample, ALL_KEYS);
}

void
tuple_shuffle_hold_out(PlanState *node, double share)
{
	((TupleShuffle *) node)->held_out = (uint64) (share * ALL_KEYS);
}

const Sample *
tuple_shuffle_kept(PlanState *node)
{
	return &((TupleShuffle *) node)->sample;
}

Worker *
tuple_shuffle_worker(PlanState *node)
{
	return ((TupleShuffle *) node)->worker;
}

uint64
tuple_shuffle_count(PlanState *node)
{
	TupleShuffle *state = (TupleShuffle *) node;
	PlanState  *child = linitial(state->css.custom_ps);
	uint64		rows = 0;

	if (!state->settled)
		sizes_settle(state, child);
	for (;;)
	{
		TupleTableSlot *slot = ExecProcNode(child);

		if (TupIsNull(slot))
			return rows;
		rows++;
	}
}

/* The number of features seen; sparse weights may have room for more. */
uint32
tuple_shuffle_width(PlanState *node)
{
	TupleShuffle *state = (TupleShuffle *) node;

	return state->sparse ? Max(state->top, 1) : state->width;
}

bool
tuple_shuffle_weighted(PlanState *node)
{
	return ((TupleShuffle *) node)->weighted;
}

uint64
tuple_shuffle_skipped(PlanState *node)
{
	return ((TupleShuffle *) node)->skipped;
}

static void
rescan(CustomScanState *node)
{
	TupleShuffle *state = (TupleShuffle *) node;
	PlanState  *child = linitial(node->custom_ps);

	if (state->worker)
		state->waited += worker_wait(state->worker);
	for (int i = 0; i < 2; i++)
		state->windows[i].used = state->windows[i].rows = 0;
	if (state->loaded && *state->loaded)
		state->page_words = state->words / *state->loaded * state->parts;
	state->seen = 0;
	state->words = 0;
	state->full = NULL;
	state->left = NULL;
	state->exhausted = state->remains = state->keeping = false;
	state->pass++;
	state->skipped = 0;
	UpdateChangedParamSet(child, node->ss.ps.chgParam);
	ExecReScan(child);
}

static void
end(CustomScanState *node)
{
	TupleShuffle *state = (TupleShuffle *) node;

	MemoryContextDelete(state->buffers);	/* joins the thread */
	state->worker = NULL;
	ExecEndNode(linitial(node->custom_ps));
}

static void
explain(CustomScanState *node, List *ancestors, ExplainState *es)
{
	TupleShuffle *state = (TupleShuffle *) node;

	ExplainPropertyText("Shuffle", shuffle_name(state->options->shuffle), es);
	ExplainPropertyUInteger("Buffer", "kB", state->buffer_bytes / 1024, es);
	if (!es->analyze && sizes_open(state))
		ExplainPropertyText("Sizes", "guessed by the table's pages; some rows will tell", es);
	if (es->analyze)
	{
		ExplainPropertyUInteger("Windows", NULL, state->window_count, es);
		ExplainPropertyUInteger("Smallest Window", "rows", state->smallest, es);
		ExplainPropertyUInteger("Largest Window", "rows", state->largest, es);
		ExplainPropertyFloat("Waiting for SGD", "s", state->waited, 3, es);
		if (state->skipped)
			ExplainPropertyUInteger("Rows Skipped for Nulls", NULL, state->skipped, es);
	}
}
