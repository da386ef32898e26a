/*
 * group_fit.c: the aggregate penstock.fit: a model for each group of a query, chosen among penalties by rows set aside.
 *
 * It is what penstock.groups does in Python, by the extension's own kernels. A group's rows are kept until all are there; then a model
 * is learnt for each penalty from the rows for training, by L-BFGS or exactly, the best on other rows is chosen and measured on rows
 * that no choice has seen, and learnt again from all rows. Features are brought to one scale within each group. Nothing here runs in
 * another thread: a Worker holds what is learnt, and its own thread is not started.
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "arrays.h"
#include "group_rows.h"

PG_FUNCTION_INFO_V1(penstock_fit_add);
PG_FUNCTION_INFO_V1(penstock_fit_final);

#define USUAL_BUFFER ((int64) 64 << 20)
#define SPLIT_SEED UINT64_C(0x73706c6974)
#define TOLERANCE 1e-5			/* the steepest slope that counts as none; a pass over a group is cheap */

/* The options of a call, read; kept for all groups. */
typedef struct Given
{
	text	   *written;
	Options    *options;
	uint64		groups;			/* so far */
} Given;

typedef struct Fitted
{
	const Options *options;
	GroupRows  *rows;
	uint64		number;			/* in the order of their keys */
} Fitted;

/* What came of a penalty. */
typedef struct Trial
{
	double		loss;			/* with the penalty, on the rows learnt from; NaN where training failed */
	double		selection_loss;
	double		selection_score;
	uint32		passes;
} Trial;

typedef struct Score
{
	double		loss;			/* sums over rows, and of labels the mean and the squares about it */
	double		hits;
	double		rows;
	double		mean;
	double		squares;
} Score;

static Given *
given_to(FunctionCallInfo fcinfo)
{
	int			last = PG_NARGS() - 1;
	Given	   *given = fcinfo->flinfo->fn_extra;
	text	   *written;
	MemoryContext before;

	if (PG_ARGISNULL(last))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("the options of penstock.fit are null"), errhint("Give '{}'.")));
	written = PG_GETARG_TEXT_PP(last);
	if (given != NULL && VARSIZE_ANY_EXHDR(given->written) == VARSIZE_ANY_EXHDR(written) &&
		memcmp(VARDATA_ANY(given->written), VARDATA_ANY(written), VARSIZE_ANY_EXHDR(written)) == 0)
		return given;
	if (given != NULL)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("the options of penstock.fit must be a constant")));
	before = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
	given = palloc0(sizeof(Given));
	given->options = read_options(text_to_cstring(written));
	require_full_passes(given->options);
	given->written = DatumGetTextPCopy(PG_GETARG_DATUM(last));
	fcinfo->flinfo->fn_extra = given;
	MemoryContextSwitchTo(before);
	return given;
}

static void
free_group(Datum group)
{
	group_rows_free(((Fitted *) DatumGetPointer(group))->rows);
}

static Fitted *
make_group(FunctionCallInfo fcinfo, MemoryContext context, Given *given, uint32 width)
{
	Fitted	   *group = MemoryContextAllocZero(context, sizeof(Fitted));

	group->options = given->options;
	group->number = given->groups++;
	group->rows = group_rows_make(context, width, given->options->buffer_size ? given->options->buffer_size : USUAL_BUFFER);
	AggRegisterCallback(fcinfo, free_group, PointerGetDatum(group));
	return group;
}

NEVER_RETURNS static void
refuse(const Fitted *group, const char *why, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_EXCEPTION),
			 errmsg("%s", why), errdetail("The row is number " UINT64_FORMAT " of its group.", group ? group->rows->rows + 1 : 1),
			 errhint("%s", hint)));
}

/*
 * Draws what a row is for: by its place in a table, where that is known, so that it is the same for all models that learn from the
 * table, else by its number in its group.
 */
static uint32
draw_lot(FunctionCallInfo fcinfo, const Fitted *group)
{
	uint64		seed = mixed_seed(group->options->seed, SPLIT_SEED, 0);

	if (PG_NARGS() > 4 && !PG_ARGISNULL(3))
	{
		ItemPointer place = (ItemPointer) PG_GETARG_POINTER(3);

		return (uint32) (mixed_seed(seed, ItemPointerGetBlockNumberNoCheck(place), ItemPointerGetOffsetNumberNoCheck(place)) >> 32);
	}
	return (uint32) (mixed_seed(seed, group->number, group->rows->rows) >> 32);
}

/* (state, features, label, options), or (state, features, label, ctid, options) with a ctid or none. */
Datum
penstock_fit_add(PG_FUNCTION_ARGS)
{
	Fitted	   *group = PG_ARGISNULL(0) ? NULL : (Fitted *) PG_GETARG_POINTER(0);
	char		room[SHORT_MOST] pg_attribute_aligned(8);
	MemoryContext context;
	Given	   *given;
	const Options *options;
	ArrayType  *array;
	const float *values;
	float		label,
				target;
	uint32		width;

	if (!AggCheckCallContext(fcinfo, &context))
		elog(ERROR, "penstock.fit is an aggregate");
	given = given_to(fcinfo);
	options = given->options;
	array = PG_ARGISNULL(1) ? NULL : plain_array(PG_GETARG_DATUM(1), room);
	if (array == NULL || PG_ARGISNULL(2) || (ARR_HASNULL(array) && array_contains_nulls(array)))
	{
		if (!options->skip_nulls)
			refuse(group, psprintf("%s null", PG_ARGISNULL(2) ? "the label is" : missing_feature(options, PG_GETARG_DATUM(1), PG_ARGISNULL(1))),
				   "Fill or remove such rows, or leave them out: \"nulls\": \"skip\".");
		if (group == NULL)
			PG_RETURN_NULL();
		PG_RETURN_POINTER(group);
	}
	if (ARR_NDIM(array) != 1)
		refuse(group, "the features are not an array of one dimension", "Give one array of numbers for each row.");
	width = ARR_DIMS(array)[0];
	values = (const float *) ARR_DATA_PTR(array);
	if (group == NULL)
		group = make_group(fcinfo, context, given, width);
	if (width != group->rows->width)
		refuse(group, psprintf("a row has %u features where the others have %u", width, group->rows->width), "Give every row as many.");
	label = PG_GETARG_FLOAT4(2);
	if (!label_target(options, label, &target))
	{
		const char *hint;
		const char *why = label_flaw(options, label, &hint);

		refuse(group, why, hint);
	}
	if (!all_finite(values, width))
		refuse(group, value_flaw(options, NULL, values, width), "Fill or remove such values before training.");
	group_rows_add(group->rows, target, values, draw_lot(fcinfo, group));
	PG_RETURN_POINTER(group);
}

static uint64
count_rows(Fitted *group, RowUse use, const Split *split)
{
	uint64		count = 0;
	Block		block;

	group_rows_scale(group->rows, NULL);
	for (uint32 i = 0; group_rows_block(group->rows, i, use, split, &block); i++)
		count += block.count;
	return count;
}

/* Says why nothing can be learnt from a group, in the words of penstock.groups; NULL where it can. */
static char *
flaw_of(Fitted *group, const Split *split)
{
	uint64		rows = 0;
	float		least = INFINITY,
				most = -INFINITY;
	Block		block;

	group_rows_scale(group->rows, NULL);
	for (uint32 i = 0; group_rows_block(group->rows, i, USE_TRAINING, split, &block); i++)
	{
		rows += block.count;
		for (uint32 k = 0; k < block.count; k++)
		{
			least = Min(least, block.words[block.order[k]]);
			most = Max(most, block.words[block.order[k]]);
		}
	}
	if (rows < 2)
		return psprintf("too few rows: " UINT64_FORMAT " to learn from", rows);
	if (group->options->loss != LOSS_SQUARED && least == most)
		return "only one class among its rows";
	return NULL;
}

/*
 * Brings features to mean 0 and spread 1, those that are 0 or 1 to mean 0 alone: by its own spread the rarest level of a category
 * would be the largest feature. What is constant in the group is 0.
 */
static void
set_scale(Worker *worker, const Options *options)
{
	const Survey *s = worker->survey;

	worker->factors = s->width;
	worker->factor = zeros(worker->context, s->width, sizeof(float));
	worker->center = zeros(worker->context, s->width, sizeof(float));
	for (uint32 j = 0; j < s->width; j++)
	{
		double		mean = options->intercept ? s->mean[j] : 0,
					variance = s->square[j] / s->rows,
					spread = sqrt(options->intercept ? variance : variance + s->mean[j] * s->mean[j]);
		float		factor = spread > 1e-7 * fabs(mean) ? (float) (1 / spread) : 0;

		worker->center[j] = (float) mean;
		worker->factor[j] = isfinite(factor) ? factor : 0;
	}
	for (int i = 0; i < options->flag_count; i++)
		if (options->flags[i] < s->width && worker->factor[options->flags[i]] > 0)
			worker->factor[options->flags[i]] = 1;
}

/* Weights are given out for each output, those of the features before the intercept, as a model per group has them in the catalogue. */
static void
take_weights(const Worker *worker, float *weights)
{
	const Learner *l = &worker->learner;

	for (uint32 c = 0; c < l->outputs; c++)
	{
		double		at_zero = l->b[c];

		for (uint32 j = 0; j < l->width; j++, weights++)
		{
			*weights = (float) (l->w[(Size) c * l->width + j] * (worker->factor ? (double) worker->factor[j] : 1));
			if (worker->center)	/* by the weight as it is stored, whose rounding a large mean would make large */
				at_zero -= (double) *weights * worker->center[j];
		}
		*weights++ = (float) at_zero;
	}
}

/* Begins where `take_weights` left off, on another scale. */
static void
start_at(Worker *worker, const float *weights)
{
	Learner    *l = &worker->learner;

	for (uint32 c = 0; c < l->outputs; c++)
	{
		double		bias = weights[l->width];

		for (uint32 j = 0; j < l->width; j++)
		{
			float		factor = worker->factor ? worker->factor[j] : 1;

			l->w[(Size) c * l->width + j] = factor > 0 ? weights[j] / factor : 0;
			if (worker->center)
				bias += (double) weights[j] * worker->center[j];
		}
		l->b[c] = (float) bias;
		weights += l->width + 1;
	}
}

/* Learns from some rows, beginning at `start` where that is given; the worker, of that memory, has the model. */
static Worker *
learn(Fitted *group, MemoryContext context, double l2, RowUse use, const Split *split, const float *start, Trial *trial)
{
	const Options *options = group->options;
	Options		own = *options;
	Worker	   *worker;
	Learner    *l;
	Block		block;
	double		penalty = 0;

	own.l2 = l2;
	own.standardize = own.average = false;	/* scaling is done here */
	worker = worker_make(context, &own, false, false, group->rows->width);
	l = &worker->learner;
	if (!worker->exact && !worker_can_fit(worker, &own, l->width))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("penstock.fit learns from up to 2000 features, and 100000 weights, not from %u features and %u outputs", l->width,
						l->outputs)));
	group_rows_scale(group->rows, NULL);
	for (uint32 i = 0; group_rows_block(group->rows, i, use, split, &block); i++)
		survey_rows(worker->survey, block.words, block.order, block.count, &worker->stop);
	if (options->standardize)
		set_scale(worker, options);
	trial->passes = 1;
	trial->loss = worker->survey->rows;
	worker_surveyed(worker, &own, l->width, !worker->exact, 0);
	group_rows_scale(group->rows, worker);
	if (worker->exact)
	{
		for (uint32 j = 0; j < l->width; j++)
			penalty += (double) l->w[j] * l->w[j];
		trial->loss = worker->residual / (2 * trial->loss) + l->l2 / 2 * penalty;
		return worker;
	}
	if (start)
		start_at(worker, start);
	worker_fit_start(worker, &own);
	worker->fit->tolerance = TOLERANCE;
	do
		for (uint32 i = 0; group_rows_block(group->rows, i, use, split, &block); i++)
			fit_add(l, worker->fit, block.words, block.order, block.count, &worker->stop);
	while (fit_step(l, worker->fit));
	trial->passes = worker->fit->passes;
	trial->loss = worker->fit->loss;
	return worker;
}

/* Measures a model on rows that it has not learnt from; these are on its scale. */
static Score
score_model(Fitted *group, Worker *worker, RowUse use, const Split *split)
{
	Score		score = {0};
	const Totals *t = &worker->learner.totals;
	Block		block;

	for (uint32 i = 0; group_rows_block(group->rows, i, use, split, &block); i++)
	{
		double		rows,
					apart;

		score_rows(&worker->learner, block.words, block.order, block.count);
		rows = (double) t->rows;
		if (rows == 0)
			continue;
		apart = t->pivot + t->shifted / rows - score.mean;
		score.loss += totals_loss(t) * rows;
		score.hits += t->hits;
		score.squares += t->shifted2 - t->shifted * t->shifted / rows + apart * apart * score.rows * rows / (score.rows + rows);
		score.mean += apart * rows / (score.rows + rows);
		score.rows += rows;
	}
	return score;
}

static double
mean_loss(const Score *score)
{
	return score->rows > 0 ? score->loss / score->rows : NAN;
}

/* The accuracy of classes, or R2. */
static double
score_value(const Score *score, Loss loss)
{
	if (loss == LOSS_SQUARED)
		return score->squares > 0 ? 1 - 2 * score->loss / score->squares : NAN;
	return score->rows > 0 ? score->hits / score->rows : NAN;
}

static Datum
doubles(const double *values, int count)
{
	Datum	   *datums = palloc(sizeof(Datum) * count);
	bool	   *nulls = palloc(sizeof(bool) * count);
	int			lower = 1;

	for (int i = 0; i < count; i++)
	{
		nulls[i] = !isfinite(values[i]);
		datums[i] = Float8GetDatum(values[i]);
	}
	return PointerGetDatum(construct_md_array(datums, nulls, 1, &count, &lower, FLOAT8OID, sizeof(float8), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/* The columns of penstock.group_model. */
enum
{
	ROWS, SELECTION_ROWS, HELD_OUT_ROWS, CONFIG, WEIGHTS, LOSS, SELECTION_LOSS, SELECTION_SCORE, PASSES, HELD_OUT_LOSS, HELD_OUT_SCORE,
	HELD_OUT_MEAN, HELD_OUT_SQUARES, OTHER_LOSS, OTHER_SCORE, JUDGED, REASON, COLUMNS
};

/* Measures the weights of another model, as `take_weights` gives them, on the rows held out. */
static Score
score_other(Fitted *group, MemoryContext context, const Split *split)
{
	const Options *options = group->options;
	Options		own = *options;
	Worker	   *worker;
	float	   *weights = options->other;

	if (options->other_count != (Size) options->outputs * (group->rows->width + 1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"other\" has %d weights, and a model of these rows %zu", options->other_count,
						(Size) options->outputs * (group->rows->width + 1))));
	own.standardize = own.average = false;
	worker = worker_make(context, &own, false, false, group->rows->width);
	start_at(worker, weights);
	group_rows_scale(group->rows, NULL);
	return score_model(group, worker, USE_HELD_OUT, split);
}

/* Learns a model for each penalty, and the best of them from all rows. */
static void
fit_group(Fitted *group, const Split *split, Datum *values, bool *nulls)
{
	const Options *options = group->options;
	int			count = Max(options->penalty_count, 1),
				best = -1;
	Size		size = (Size) options->outputs * (group->rows->width + 1);
	float	   *weights = palloc_extended(size * sizeof(float), MCXT_ALLOC_HUGE),
			   *kept = palloc_extended(size * sizeof(float), MCXT_ALLOC_HUGE);
	double	   *columns[4];
	Trial		again;
	Score		held_out = {0};
	MemoryContext trial_context = AllocSetContextCreate(CurrentMemoryContext, "penstock trial", ALLOCSET_DEFAULT_SIZES);

	for (int i = 0; i < lengthof(columns); i++)
		columns[i] = palloc(sizeof(double) * count);
	for (int i = 0; i < count; i++)
	{
		Trial		trial;
		double		l2 = options->penalty_count ? options->penalties[i] : options->l2,
					rank;
		Worker	   *worker = learn(group, trial_context, l2, USE_TRAINING, split, i > 0 ? weights : NULL, &trial);
		Score		score = score_model(group, worker, USE_SELECTION, split);

		take_weights(worker, weights);
		if (!all_finite(weights, size))
		{
			trial.loss = NAN;
			memset(weights, 0, size * sizeof(float));
		}
		columns[0][i] = trial.loss;
		columns[1][i] = isfinite(trial.loss) ? mean_loss(&score) : NAN;
		columns[2][i] = isfinite(trial.loss) ? score_value(&score, options->loss) : NAN;
		columns[3][i] = trial.passes;
		rank = score.rows > 0 ? columns[1][i] : trial.loss;
		if (isfinite(rank) && (best < 0 || rank < (score.rows > 0 ? columns[1][best] : columns[0][best])))
		{
			best = i;
			memcpy(kept, weights, size * sizeof(float));
			held_out = score_model(group, worker, USE_HELD_OUT, split);
		}
		MemoryContextReset(trial_context);
	}
	nulls[LOSS] = nulls[SELECTION_LOSS] = nulls[SELECTION_SCORE] = nulls[PASSES] = false;
	if (best < 0)
	{
		values[REASON] = CStringGetTextDatum("its features are too large to be learnt from");
		nulls[REASON] = false;
	}
	else
	{
		if (options->keep_judged)
		{
			values[JUDGED] = float_array(kept, size);
			nulls[JUDGED] = false;
		}
		if (options->other_count)
		{
			Score		other = score_other(group, trial_context, split);

			values[OTHER_LOSS] = Float8GetDatum(mean_loss(&other));
			values[OTHER_SCORE] = Float8GetDatum(score_value(&other, options->loss));
			nulls[OTHER_LOSS] = !isfinite(mean_loss(&other));
			nulls[OTHER_SCORE] = !isfinite(score_value(&other, options->loss));
			MemoryContextReset(trial_context);
		}
		if (split->held_out > 0)
		{
			double		l2 = options->penalty_count ? options->penalties[best] : options->l2;
			Worker	   *worker = learn(group, trial_context, l2, USE_ALL, split, kept, &again);

			take_weights(worker, weights);
			if (all_finite(weights, size))
				memcpy(kept, weights, size * sizeof(float));
			columns[3][best] += again.passes;
		}
		values[CONFIG] = Int32GetDatum(best);
		values[WEIGHTS] = float_array(kept, size);
		values[HELD_OUT_LOSS] = Float8GetDatum(mean_loss(&held_out));
		values[HELD_OUT_SCORE] = Float8GetDatum(score_value(&held_out, options->loss));
		nulls[CONFIG] = nulls[WEIGHTS] = false;
		nulls[HELD_OUT_LOSS] = !isfinite(mean_loss(&held_out));
		nulls[HELD_OUT_SCORE] = !isfinite(score_value(&held_out, options->loss));
		values[HELD_OUT_MEAN] = Float8GetDatum(held_out.mean);
		values[HELD_OUT_SQUARES] = Float8GetDatum(held_out.squares);
		nulls[HELD_OUT_MEAN] = nulls[HELD_OUT_SQUARES] = options->loss != LOSS_SQUARED || held_out.rows == 0;
	}
	for (int i = 0; i < lengthof(columns); i++)
		values[LOSS + i] = doubles(columns[i], count);
	MemoryContextDelete(trial_context);
}

Datum
penstock_fit_final(PG_FUNCTION_ARGS)
{
	Fitted	   *group = PG_ARGISNULL(0) ? NULL : (Fitted *) PG_GETARG_POINTER(0);
	TupleDesc	type;
	Datum		values[COLUMNS] = {0};
	bool		nulls[COLUMNS];
	char	   *flaw = "too few rows: 0 to learn from";

	if (!AggCheckCallContext(fcinfo, NULL))
		elog(ERROR, "penstock.fit is an aggregate");
	if (get_call_result_type(fcinfo, NULL, &type) != TYPEFUNC_COMPOSITE || type->natts != COLUMNS)
		elog(ERROR, "the type penstock.group_model is not as this library knows it");
	memset(nulls, true, sizeof(nulls));
	nulls[ROWS] = nulls[SELECTION_ROWS] = nulls[HELD_OUT_ROWS] = false;
	values[ROWS] = values[SELECTION_ROWS] = values[HELD_OUT_ROWS] = Int64GetDatum(0);
	if (group != NULL)
	{
		double		share = group->options->validation < 0 ? HELD_OUT_SHARE : group->options->validation;
		Split		split = {
			.held_out = share,
			.selection = group->options->penalty_count > 1 ? Min(share, (1 - share) / 2) : 0,
		};

		values[ROWS] = Int64GetDatum((int64) group->rows->rows);
		flaw = flaw_of(group, &split);
		if (flaw == NULL)
		{
			values[SELECTION_ROWS] = Int64GetDatum((int64) count_rows(group, USE_SELECTION, &split));
			values[HELD_OUT_ROWS] = Int64GetDatum((int64) count_rows(group, USE_HELD_OUT, &split));
			fit_group(group, &split, values, nulls);
		}
	}
	if (flaw != NULL)
	{
		values[REASON] = CStringGetTextDatum(flaw);
		nulls[REASON] = false;
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(type), values, nulls)));
}
