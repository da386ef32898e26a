/*
 * sgd.c: the node that learns, and gives a row for each epoch.
 *
 * After the CorgiPile paper, section 5.2: an epoch takes all windows from the node below, and the next begins by a
 * rescan of it. Windows go to the compute thread and are learnt from while the next is filled. The last epoch's row
 * carries the weights; none but that row does, so whoever saves a model has a whole one or none.
 *
 * Before the first epoch the rows are surveyed, unless nothing that is asked for needs it: one more pass, by the same windows and
 * thread. Where L-BFGS can be used, each of its passes is one more, or goes over the one window that all rows lie in. The one row that is
 * given then carries the model.
 *
 * Loss and score of an epoch are progressive: each row is counted just before it is learnt from, which costs no pass and flatters
 * where like rows follow one another. The finished model is scored on rows that are held out of all epochs, though not of the survey,
 * or on a sample of the last epoch's where there are none.
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
#include "utils/typcache.h"

#include "penstock.h"
#include "progress.h"

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
	double		model_loss;		/* of the finished model, and on how many rows */
	double		model_score;
	uint64		sample_rows;
	double		held_out;		/* the share of the rows that the model is measured on */
	double		learning;		/* seconds of all epochs that the thread was busy, and that they took */
	double		seconds;
	Progress   *progress;
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

static const Oid row_types[EPOCH_COLUMNS] = {INT4OID, FLOAT8OID, FLOAT8OID, FLOAT8OID, INT8OID, FLOAT4ARRAYOID, FLOAT4ARRAYOID, FLOAT8OID,
INT8OID, FLOAT8OID, FLOAT8OID, FLOAT8OID, INT8OID};

static Node *
create_state(CustomScan *plan)
{
	SGD		   *state = (SGD *) newNode(sizeof(SGD), T_CustomScanState);

	state->css.methods = &methods;
	return (Node *) state;
}

/* The type of rows, if it is as this library knows it. */
TupleDesc
epoch_type(Oid type)
{
	TupleDesc	found = lookup_rowtype_tupdesc_copy(type, -1);

	for (int i = 0; i < EPOCH_COLUMNS; i++)
		if (found->natts != EPOCH_COLUMNS || TupleDescAttr(found, i)->atttypid != row_types[i])
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the functions of this database are older than the installed library; run: ALTER EXTENSION penstock UPDATE")));
	return found;
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
	if (state->options->solver == SOLVER_EXACT)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the solver \"exact\" is for dense rows, from which penstock.least_squares learns"),
				 errhint("Use \"solver\": \"sgd\".")));
	state->row_type = epoch_type(TupleDescAttr(scanned, 0)->atttypid);
	node->custom_ps = list_make1(ExecInitNode(linitial(plan->custom_plans), estate, eflags));
}

/*
 * Steps that need no tuning, after `falling` of Penstock's sgd/rates.py, with its first rates. Sparse rows of rare features, which
 * are long once they are scaled, keep the first rate of two classes low; more classes learn too little by it.
 */
#define BOUNDED_POWER 0.75

#define SPARSE_RATE 0.03

static const double bounded_rates[] = {[LOSS_LOGISTIC] = 0.1,[LOSS_HINGE] = 0.1,[LOSS_SQUARED] = 0.03,[LOSS_SOFTMAX] = 0.1};
static const double curvatures[] = {[LOSS_LOGISTIC] = 0.25,[LOSS_HINGE] = 1,[LOSS_SQUARED] = 1,[LOSS_SOFTMAX] = 0.5};

/*
 * What the rate is divided by where classes have weights: a bounded step is shortened the more, the more its row weighs, which would
 * leave heavy classes less than their weight.
 */
static double
slowness(const Learner *l)
{
	double		most = 1;

	for (uint32 c = 0; l->class_weights && c < Max(l->outputs, 2); c++)
		most = Max(most, 2.0 * l->class_weights[c] / l->batch_size - 1);
	return most;
}

static void
set_rate(SGD *state)
{
	Learner    *l = &state->worker->learner;
	const Options *options = state->options;

	l->base = options->learning_rate;
	l->power = 0;
	l->bound = 0;
	if (options->learning_rate == 0)
	{
		l->base = l->sparse && l->loss != LOSS_SOFTMAX ? SPARSE_RATE : bounded_rates[l->loss];
		l->base *= pow(1 + state->epoch, -BOUNDED_POWER) / slowness(l);
		l->bound = curvatures[options->loss];
	}
	else if (options->rate == RATE_AUTO || options->rate == RATE_EXPONENTIAL)
		l->base *= pow(options->decay, state->epoch);
	else if (options->rate == RATE_INVERSE_SCALING)
		l->power = options->power;
	average_start(l);
	totals_start(&l->totals);
}

/* Whether the model is that of L-BFGS: there are no epochs. */
static bool
is_solved(const SGD *state)
{
	return state->worker != NULL && state->worker->fitted;
}

NEVER_RETURNS static void
refuse_no_rows(PlanState *child)
{
	ereport(ERROR,
			(errcode(ERRCODE_NO_DATA_FOUND),
			 tuple_shuffle_skipped(child) ? errmsg("all rows have nulls%s; there is nothing to learn from",
											tuple_shuffle_weighted(child) ? " or a weight of 0" : "")
			 : errmsg("there are no rows to learn from")));
}

NEVER_RETURNS static void
refuse_all_held_out(const SGD *state)
{
	ereport(ERROR,
			(errcode(ERRCODE_NO_DATA_FOUND),
			 errmsg("all rows are held out; there is nothing to learn from"),
			 errhint("Give a smaller validation than %g.", state->held_out)));
}

/* Hands a window over, and says so: with the loss of the epoch so far, which the thread has no hand in while it waits. */
static void
give(SGD *state, Worker *worker, Window *window, bool learns)
{
	uint32		rows = window->rows;

	if (learns)
		worker_wait(worker);
	progress_window(state->progress, rows, learns && worker->learner.totals.rows ? totals_loss(&worker->learner.totals) : NAN);
	worker_give(worker, window);
}

/* Has L-BFGS find the weights, by passes over the one window that holds all rows, or over the table. */
static void
run_fit(SGD *state)
{
	PlanState  *child = linitial(state->css.custom_ps);
	Worker	   *worker = state->worker;
	Window	   *window,
			   *only = NULL;
	int			windows = 0;

	worker_fit_start(worker, state->options);
	do
	{
		progress_epoch(state->progress, PHASE_LBFGS, worker->fit->passes + 1, 0, state->rows,
					   worker->fit->passes ? worker->fit->loss : NAN);
		if (windows == 1)
			worker_give(worker, only);
		else
		{
			ExecReScan(child);
			if (state->held_out > 0)
				tuple_shuffle_keep(child);
			for (windows = 0; (window = tuple_shuffle_next(child)) != NULL; windows++)
				give(state, worker, only = window, false);
		}
		worker_give(worker, NULL);
		if (worker->fit->rows == 0)
			refuse_all_held_out(state);
		state->rows = worker->fit->rows;
	}
	while (worker_fit_step(worker, state->options));
}

/* Holds out the share that was asked for, or of so many rows the usual one. */
static void
hold_out(SGD *state, uint64 rows)
{
	state->held_out = state->options->validation >= 0 ? state->options->validation : sample_share(rows);
	tuple_shuffle_hold_out(linitial(state->css.custom_ps), state->held_out);
}

static void
run_survey(SGD *state)
{
	PlanState  *child = linitial(state->css.custom_ps);
	Worker	   *worker = state->worker;
	Window	   *window;
	bool		fits;

	if (worker)					/* of a plan that is run again */
		worker_survey(worker, state->options);
	progress_epoch(state->progress, PHASE_SURVEY, 0, 0, 0, NAN);
	while ((window = tuple_shuffle_next(child)) != NULL)
	{
		worker = tuple_shuffle_worker(child);
		give(state, worker, window, false);
	}
	if (worker == NULL)
		refuse_no_rows(child);
	worker_give(worker, NULL);
	state->rows = worker->survey->rows;
	if (state->rows == 0)
		refuse_no_rows(child);
	fits = worker_can_fit(worker, state->options, tuple_shuffle_width(child));
	if (state->options->solver == SOLVER_LBFGS && !fits)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("the solver \"lbfgs\" is for dense rows of up to 2000 features and sparse ones of up to 600000 weights, not for %u features",
						tuple_shuffle_width(child)),
				 errhint("Use \"solver\": \"sgd\".")));
	hold_out(state, state->rows);
	worker_surveyed(worker, state->options, tuple_shuffle_width(child), fits, state->held_out);
	state->worker = worker;
	if (fits)
		run_fit(state);
	if (!is_solved(state))
		ExecReScan(child);
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
	if (state->progress == NULL)
		state->progress = progress_start(state->css.ss.ps.state->es_query_cxt, state->options->title, model_name(state->options->loss));
	if (state->epoch == 0)
		tuple_shuffle_hold_out(child, 0);	/* of a plan that is run again: the survey reads all rows */
	if (state->epoch == 0 && needs_survey(state->options, tuple_shuffle_weighted(child)))
		run_survey(state);
	else if (state->epoch == 0)
		hold_out(state, 0);
	if (is_solved(state))
	{
		state->learning += state->worker->busy - busy;
		return;
	}
	if (state->worker)
		set_rate(state);
	if (state->epoch + 1 == state->options->epochs)
		tuple_shuffle_keep(child);
	progress_epoch(state->progress, PHASE_SGD, state->epoch + 1, state->options->epochs, state->rows, state->epoch ? state->loss : NAN);
	while ((window = tuple_shuffle_next(child)) != NULL)
	{
		if (state->worker == NULL)
		{
			state->worker = tuple_shuffle_worker(child);
			set_rate(state);
		}
		give(state, state->worker, window, true);
	}
	if (state->worker == NULL)
	{
		if (state->held_out > 0)
			refuse_all_held_out(state);
		refuse_no_rows(child);
	}
	worker_give(state->worker, NULL);
	learner_settle(&state->worker->learner);
	average_end(&state->worker->learner);
	state->rows = state->worker->learner.totals.rows;
	if (state->rows == 0 && state->held_out > 0)
		refuse_all_held_out(state);
	state->loss = totals_loss(&state->worker->learner.totals);
	state->score = totals_score(&state->worker->learner.totals, state->options->loss);
	state->learning += state->worker->busy - busy;
	if (!isfinite(state->loss))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("the loss has left all bounds in epoch %d", state->epoch + 1),
				 errhint("Use a smaller learning_rate, or leave it out.")));
}

static void
score_model(SGD *state)
{
	const Sample *sample = tuple_shuffle_kept(linitial(state->css.custom_ps));
	Learner    *l = &state->worker->learner;

	if (!state->worker->fitted)
		average_take(l);
	if (!state->worker->fitted || state->held_out > 0)	/* L-BFGS has scored all rows that it learnt from */
		score_rows(l, sample->words, sample->order, sample->rows);
	state->sample_rows = l->totals.rows;
	state->model_loss = totals_loss(&l->totals);
	state->model_score = totals_score(&l->totals, l->loss);
}

/*
 * Warns of a model that is worse than a constant prediction on the rows that it is measured on, by more than chance. Solvers end at
 * the minimum, which is never worse; with class weights the largest class is not what is aimed at.
 */
static void
warn_of_useless(const SGD *state)
{
	const Worker *worker = state->worker;
	const Learner *l = &worker->learner;
	double		constant = worker->constant_score,
				chance = 2 * sqrt(constant * (1 - constant) / Max(state->sample_rows, 1));
	bool		worse = state->model_score < constant - chance;

	if (!worker->surveyed || is_solved(state) || state->sample_rows == 0 || l->class_weights)
		return;
	if (l->loss == LOSS_LOGISTIC || l->loss == LOSS_SOFTMAX)
		worse = state->model_score <= constant + chance && totals_loss(&l->totals) > worker->constant_loss + chance;
	if (worse)
		ereport(WARNING,
				(errmsg("the model is useless: its %s on %s rows is %.4f, and that of a constant prediction %.4f",
						l->loss == LOSS_SQUARED ? "R2" : "accuracy", state->held_out > 0 ? "held-out" : "training", state->model_score,
						constant),
				 errhint("Leave out the options that SGD was given, or look for columns that tell more of the label.")));
}

static TupleTableSlot *
next_epoch(CustomScanState *node)
{
	SGD		   *state = (SGD *) node;
	TupleTableSlot *slot = node->ss.ss_ScanTupleSlot;
	ExprContext *econtext = node->ss.ps.ps_ExprContext;
	Datum		values[EPOCH_COLUMNS];
	bool		nulls[EPOCH_COLUMNS] = {false};
	MemoryContext before;
	instr_time	start;
	double		seconds;
	bool		last;

	if (state->epoch >= state->options->epochs || (is_solved(state) && state->epoch > 0))
		return ExecClearTuple(slot);
	INSTR_TIME_SET_CURRENT(start);
	run_epoch(state);
	seconds = seconds_since(start);
	state->seconds += seconds;
	last = ++state->epoch == state->options->epochs || is_solved(state);

	ResetExprContext(econtext);
	before = MemoryContextSwitchTo(econtext->ecxt_per_tuple_memory);
	values[EPOCH_NUMBER] = Int32GetDatum(state->worker != NULL && state->worker->fitted ? state->worker->passes : state->epoch);
	values[EPOCH_LOSS] = Float8GetDatum(state->loss);
	values[EPOCH_SCORE] = Float8GetDatum(state->score);
	values[EPOCH_SECONDS] = Float8GetDatum(seconds);
	values[EPOCH_ROWS] = Int64GetDatum((int64) state->rows);
	nulls[EPOCH_LOSS] = nulls[EPOCH_SCORE] = state->options->read_only || is_solved(state);
	for (int i = EPOCH_COEF; i < EPOCH_COLUMNS; i++)
		nulls[i] = !last || state->options->read_only;
	if (!nulls[EPOCH_COEF])
	{
		bool		held_out = state->held_out > 0;

		score_model(state);
		warn_of_useless(state);
		values[EPOCH_TRAINING_SCORE] = values[EPOCH_HELD_OUT_SCORE] = Float8GetDatum(state->model_score);
		values[EPOCH_SAMPLE_ROWS] = values[EPOCH_HELD_OUT_ROWS] = Int64GetDatum((int64) state->sample_rows);
		values[EPOCH_HELD_OUT_LOSS] = Float8GetDatum(state->model_loss);
		values[EPOCH_WEIGHT_MEAN] = Float8GetDatum(state->worker->weight_mean);
		nulls[EPOCH_TRAINING_SCORE] = held_out || state->sample_rows == 0;
		nulls[EPOCH_SAMPLE_ROWS] = held_out;
		nulls[EPOCH_HELD_OUT_LOSS] = nulls[EPOCH_HELD_OUT_SCORE] = nulls[EPOCH_HELD_OUT_ROWS] = !held_out || state->sample_rows == 0;
		worker_weights(state->worker, tuple_shuffle_width(linitial(node->custom_ps)), &values[EPOCH_COEF], &values[EPOCH_INTERCEPT]);
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
	if (is_solved(state))
		ExplainPropertyText("Solver", "lbfgs", es);
	else if (state->worker == NULL && may_be_fitted(options))
		ExplainPropertyText("Solver", "lbfgs, where rows have up to 2000 features and fit into effective_cache_size", es);
	else
		ExplainPropertyText("Solver", "sgd", es);
	if (is_solved(state))
		ExplainPropertyUInteger("Passes", NULL, state->worker->passes, es);
	if (!is_solved(state))
	{
		ExplainPropertyInteger("Epochs", NULL, options->epochs, es);
		ExplainPropertyUInteger("Batch Size", NULL, options->batch_size, es);
		if (options->learning_rate == 0)
			ExplainPropertyText("Learning Rate", "auto", es);
		else
			ExplainPropertyFloat("Learning Rate", NULL, options->learning_rate, 6, es);
		ExplainPropertyBool("Average", options->average, es);
	}
	ExplainPropertyBool("Standardize", options->standardize, es);
	ExplainPropertyBool("Survey", needs_survey(options, tuple_shuffle_weighted(linitial(node->custom_ps))), es);
	if (es->analyze && state->epoch > 0)
	{
		ExplainPropertyUInteger("Rows per Epoch", NULL, state->rows, es);
		if (!is_solved(state))
		{
			ExplainPropertyFloat("Progressive Loss", NULL, state->loss, 6, es);
			ExplainPropertyFloat(options->loss == LOSS_SQUARED ? "Progressive R2" : "Progressive Accuracy", NULL, state->score, 6,
								 es);
		}
		if (state->sample_rows)
			ExplainPropertyFloat(psprintf("%s %s", state->held_out > 0 ? "Held-out" : "Training",
										  options->loss == LOSS_SQUARED ? "R2" : "Accuracy"), NULL, state->model_score, 6, es);
		ExplainPropertyFloat("Learning", "s", state->learning, 3, es);
		ExplainPropertyFloat("Waiting for Rows", "s", Max(state->seconds - state->learning, 0), 3, es);
	}
}
