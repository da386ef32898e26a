/*
 * sgd.c: the node that learns, and gives a row for each epoch.
 *
 * After the CorgiPile paper, section 5.2: an epoch takes all windows from the node below, and the next begins by a
 * rescan of it. Windows go to the compute thread and are learnt from while the next is filled. The last epoch's row
 * carries the weights; none but that row does, so whoever saves a model has a whole one or none.
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "commands/explain.h"
#if PG_VERSION_NUM >= 180000
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#endif
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/typcache.h"

#include "penstock.h"

typedef struct SGD
{
	CustomScanState css;
	Options    *options;
	Worker	   *worker;
	TupleDesc	row_type;
	int			epoch;
	uint64		rows;			/* of the last epoch */
	double		loss;
	double		score;
	double		learning;		/* seconds of all epochs that the thread was busy, and that they took */
	double		seconds;
} SGD;

static Node *create_state(CustomScan *plan);
static void begin(CustomScanState *node, EState *estate, int eflags);
static TupleTableSlot *next_epoch(CustomScanState *node);
static void end(CustomScanState *node);
static void rescan(CustomScanState *node);
static void explain(CustomScanState *node, List *ancestors, ExplainState *es);

CustomScanMethods sgd_methods = {
	.CustomName = "SGD",
	.CreateCustomScanState = create_state,
};

static CustomExecMethods methods = {
	.CustomName = "SGD",
	.BeginCustomScan = begin,
	.ExecCustomScan = next_epoch,
	.EndCustomScan = end,
	.ReScanCustomScan = rescan,
	.ExplainCustomScan = explain,
};

static const Oid row_types[] = {INT4OID, FLOAT8OID, FLOAT8OID, FLOAT8OID, INT8OID, FLOAT4ARRAYOID, FLOAT4ARRAYOID};

static Node *
create_state(CustomScan *plan)
{
	SGD		   *state = (SGD *) newNode(sizeof(SGD), T_CustomScanState);

	state->css.methods = &methods;
	return (Node *) state;
}

static void
begin(CustomScanState *node, EState *estate, int eflags)
{
	SGD		   *state = (SGD *) node;
	CustomScan *plan = (CustomScan *) node->ss.ps.plan;
	TupleDesc	scanned = node->ss.ss_ScanTupleSlot->tts_tupleDescriptor;

	if (*strVal(linitial(plan->custom_private)) == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("options of penstock.sgd that are a parameter need a plan for each value"),
				 errhint("Use: SET plan_cache_mode = auto.")));
	state->options = read_options(strVal(linitial(plan->custom_private)));
	state->row_type = lookup_rowtype_tupdesc_copy(TupleDescAttr(scanned, 0)->atttypid, -1);
	for (int i = 0; i < lengthof(row_types); i++)
		if (state->row_type->natts != lengthof(row_types) || TupleDescAttr(state->row_type, i)->atttypid != row_types[i])
			elog(ERROR, "the type penstock.epoch is not as this library knows it; run ALTER EXTENSION penstock UPDATE");
	node->custom_ps = list_make1(ExecInitNode(linitial(plan->custom_plans), estate, eflags));
}

static void
set_rate(SGD *state)
{
	Learner    *l = &state->worker->learner;
	const Options *options = state->options;

	l->base = options->learning_rate;
	l->power = 0;
	if (options->rate == RATE_EXPONENTIAL)
		l->base *= pow(options->decay, state->epoch);
	else if (options->rate == RATE_INVERSE_SCALING)
		l->power = options->power;
	totals_start(&l->totals);
}

static void
run_epoch(SGD *state)
{
	PlanState  *child = linitial(state->css.custom_ps);
	double		busy = state->worker ? state->worker->busy : 0;
	Window	   *window;

	if (state->epoch > 0)
		ExecReScan(child);
	if (state->options->read_only)
	{
		state->rows = tuple_shuffle_count(child);
		return;
	}
	if (state->worker)
		set_rate(state);
	while ((window = tuple_shuffle_next(child)) != NULL)
	{
		if (state->worker == NULL)
		{
			state->worker = tuple_shuffle_worker(child);
			set_rate(state);
		}
		worker_give(state->worker, window);
	}
	if (state->worker == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 tuple_shuffle_skipped(child) ? errmsg("all rows have nulls; there is nothing to learn from")
				 : errmsg("there are no rows to learn from")));
	worker_give(state->worker, NULL);
	learner_settle(&state->worker->learner);
	state->rows = state->worker->learner.totals.rows;
	state->loss = totals_loss(&state->worker->learner.totals);
	state->score = totals_score(&state->worker->learner.totals, state->options->loss);
	state->learning += state->worker->busy - busy;
	if (!isfinite(state->loss))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("the loss has left all bounds in epoch %d", state->epoch + 1),
				 errhint("Use a smaller learning_rate, or bring the features to a common scale.")));
}

static Datum
floats(const float *from, Size count)
{
	Size		bytes = ARR_OVERHEAD_NONULLS(1) + count * sizeof(float);
	ArrayType  *array = palloc(bytes);

	SET_VARSIZE(array, bytes);
	array->ndim = 1;
	array->dataoffset = 0;
	array->elemtype = FLOAT4OID;
	ARR_DIMS(array)[0] = count;
	ARR_LBOUND(array)[0] = 1;
	memcpy(ARR_DATA_PTR(array), from, count * sizeof(float));
	return PointerGetDatum(array);
}

/* The weights by output, as the catalogue keeps them, whatever their layout here. */
static Datum
coefficients(SGD *state)
{
	Learner    *l = &state->worker->learner;
	Size		width = tuple_shuffle_width(linitial(state->css.custom_ps)),
				outputs = l->outputs;
	float	   *turned;

	for (Size i = 0; i < width * outputs; i++)
		if (!isfinite(l->w[i]))
			ereport(ERROR,
					(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
					 errmsg("a weight is not a finite number"), errhint("Use a smaller learning_rate.")));
	if (!l->sparse || outputs == 1)
		return floats(l->w, width * outputs);
	turned = palloc_extended(width * outputs * sizeof(float), MCXT_ALLOC_HUGE);
	for (Size j = 0; j < width; j++)
		for (Size c = 0; c < outputs; c++)
			turned[c * width + j] = l->w[j * outputs + c];
	return floats(turned, width * outputs);
}

static TupleTableSlot *
next_epoch(CustomScanState *node)
{
	SGD		   *state = (SGD *) node;
	TupleTableSlot *slot = node->ss.ss_ScanTupleSlot;
	ExprContext *econtext = node->ss.ps.ps_ExprContext;
	Datum		values[lengthof(row_types)];
	bool		nulls[lengthof(row_types)] = {false};
	MemoryContext before;
	instr_time	start;
	double		seconds;
	bool		last;

	if (state->epoch >= state->options->epochs)
		return ExecClearTuple(slot);
	INSTR_TIME_SET_CURRENT(start);
	run_epoch(state);
	seconds = seconds_since(start);
	state->seconds += seconds;
	last = ++state->epoch == state->options->epochs;

	ResetExprContext(econtext);
	before = MemoryContextSwitchTo(econtext->ecxt_per_tuple_memory);
	values[0] = Int32GetDatum(state->epoch);
	values[1] = Float8GetDatum(state->loss);
	values[2] = Float8GetDatum(state->score);
	values[3] = Float8GetDatum(seconds);
	values[4] = Int64GetDatum((int64) state->rows);
	nulls[1] = nulls[2] = state->options->read_only;
	nulls[5] = nulls[6] = !last || state->options->read_only;
	if (!nulls[5])
	{
		values[5] = coefficients(state);
		values[6] = floats(state->worker->learner.b, state->options->outputs);
	}
	ExecClearTuple(slot);
	slot->tts_values[0] = HeapTupleGetDatum(heap_form_tuple(state->row_type, values, nulls));
	slot->tts_isnull[0] = false;
	MemoryContextSwitchTo(before);
	ExecStoreVirtualTuple(slot);
	econtext->ecxt_scantuple = slot;
	return node->ss.ps.ps_ProjInfo ? ExecProject(node->ss.ps.ps_ProjInfo) : slot;
}

static void
rescan(CustomScanState *node)
{
	SGD		   *state = (SGD *) node;
	PlanState  *child = linitial(node->custom_ps);

	if (state->worker)
		worker_reset(state->worker);
	state->epoch = 0;
	UpdateChangedParamSet(child, node->ss.ps.chgParam);
	ExecReScan(child);
}

static void
end(CustomScanState *node)
{
	ExecEndNode(linitial(node->custom_ps));
}

static void
explain(CustomScanState *node, List *ancestors, ExplainState *es)
{
	SGD		   *state = (SGD *) node;
	const Options *options = state->options;

	ExplainPropertyText("Model", model_name(options->loss), es);
	ExplainPropertyInteger("Epochs", NULL, options->epochs, es);
	ExplainPropertyUInteger("Batch Size", NULL, options->batch_size, es);
	ExplainPropertyFloat("Learning Rate", NULL, options->learning_rate, 6, es);
	if (es->analyze && state->epoch > 0)
	{
		ExplainPropertyUInteger("Rows per Epoch", NULL, state->rows, es);
		ExplainPropertyFloat("Loss", NULL, state->loss, 6, es);
		ExplainPropertyFloat(options->loss == LOSS_SQUARED ? "R2" : "Accuracy", NULL, state->score, 6, es);
		ExplainPropertyFloat("Learning", "s", state->learning, 3, es);
		ExplainPropertyFloat("Waiting for Rows", "s", Max(state->seconds - state->learning, 0), 3, es);
	}
}
