/*
 * least_squares.c: the aggregate penstock.least_squares, which solves least squares exactly by one pass over the rows.
 *
 * What it keeps are sums: counts, means and the products of all pairs of columns about their means. Sums of parts of the rows can be
 * merged, so the server may plan it as any aggregate of its own: in parallel workers, each with its share of a table's pages, and by
 * groups. The last step, the solution of the normal equations, is that of solve_least_squares.
 *
 * Rows that are held out are kept as they are, to measure the model on. How many there are to be is known at the end only: where that
 * was left open, those that turn out to be too many are taken into the sums after all.
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "access/parallel.h"
#include "access/xact.h"
#include "fmgr.h"
#include "funcapi.h"
#include "storage/itemptr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "penstock.h"

PG_FUNCTION_INFO_V1(penstock_least_squares_add);
PG_FUNCTION_INFO_V1(penstock_least_squares_merge);
PG_FUNCTION_INFO_V1(penstock_least_squares_pack);
PG_FUNCTION_INFO_V1(penstock_least_squares_unpack);
PG_FUNCTION_INFO_V1(penstock_least_squares_solve);
PG_FUNCTION_INFO_V1(penstock_may_be_exact);

typedef struct LeastSquares
{
	MemoryContext context;
	char	   *json;
	Options    *options;
	Worker	   *worker;			/* holds the survey; NULL until the first row */
	uint64		rows;			/* given so far */
	uint64		skipped;
	Size		row_words;
	uint32		pending;		/* rows that the survey has not taken in yet */
	uint32		order[SURVEY_ROWS];
	float	   *words;
	Sample		held_out;
	uint64		asked;			/* rows whose keys are below it are not learnt from, where a share was asked for */
} LeastSquares;

/* A state on its way from a worker: this, mean and square of each column, products, the rows held out with their keys, and the options. */
typedef struct Packed
{
	int32		length;			/* of a varlena */
	uint32		width;
	uint64		rows;
	uint64		skipped;
	uint64		surveyed;
	double		mass;
	double		label_sum;
	uint64		below;
	uint32		held_out;
	uint32		json_length;
	bool		weighted;
} Packed;

static void
take_in(LeastSquares *state)
{
	if (state->pending)
		survey_rows(state->worker->survey, state->words, state->order, state->pending, &state->worker->stop);
	state->pending = 0;
}

static void
learn_row(void *argument, const float *row)
{
	LeastSquares *state = argument;

	memcpy(state->words + state->order[state->pending++], row, state->row_words * sizeof(float));
	if (state->pending == SURVEY_ROWS)
		take_in(state);
}

static LeastSquares *
make_state(MemoryContext context, const char *json)
{
	MemoryContext before = MemoryContextSwitchTo(context);
	LeastSquares *state = palloc0(sizeof(LeastSquares));

	state->context = context;
	state->json = pstrdup(json);
	state->options = read_options_of(json, LOSS_SQUARED);
	require_single(state->options);
	if (!may_be_exact(state->options))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("penstock.least_squares learns linear models without l1, and these options ask for others or for SGD"),
				 errhint("Use penstock.sgd, or penstock.train, which chooses.")));
	state->options->solver = SOLVER_EXACT;
	state->asked = (uint64) (Max(state->options->validation, 0) * ALL_KEYS);
	sample_start(&state->held_out, state->options->validation < 0 ? (uint64) (HELD_OUT_SHARE * ALL_KEYS) : state->asked);
	if (state->options->validation < 0)
	{
		state->held_out.left = learn_row;
		state->held_out.argument = state;
	}
	MemoryContextSwitchTo(before);
	return state;
}

static void
start_survey(LeastSquares *state, bool weighted, uint32 width)
{
	state->worker = worker_make(state->context, state->options, false, weighted, width);
	state->row_words = 1 + (Size) width + weighted;
	state->words = zeros(state->context, state->row_words * (SURVEY_ROWS + 1), sizeof(float));	/* the last is a row that has just come */
	for (uint32 i = 0; i < SURVEY_ROWS; i++)
		state->order[i] = (uint32) (i * state->row_words);
}

/* Where a row is, for errors about it: a place in a table, or its number, where only one process counts. */
typedef struct RowPlace
{
	ItemPointer tid;
	Oid			table;
	uint64		number;
} RowPlace;

static int
err_row(const RowPlace *place)
{
	char	   *table = place->tid ? get_rel_name(place->table) : NULL;

	if (table == NULL && IsInParallelMode())
		return 0;
	return err_place(place->tid, table, place->number);
}

NEVER_RETURNS static void
refuse_row(const RowPlace *place, const char *why, const char *hint)
{
	ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION), errmsg("%s", why), err_row(place), errhint("%s", hint)));
}

/* By its place in a table, else by its number in this process. */
static uint32
key_of(const LeastSquares *state, const RowPlace *place)
{
	uint64		number = place->number,
				part = ParallelWorkerNumber + 1;

	if (place->tid)
	{
		number = (uint64) ItemPointerGetBlockNumberNoCheck(place->tid) << 16 ^ ItemPointerGetOffsetNumberNoCheck(place->tid);
		part = (uint64) place->table << 32;
	}
	return sample_key(state->options->seed, number, part);
}

/* Learns from a row, or keeps it to measure the model on. Of a share that was asked for, what there is no room for is left out. */
static void
add_or_hold_out(LeastSquares *state, const float *row, uint32 key)
{
	bool		kept = sample_add(&state->held_out, state->context, SAMPLE_BYTES, row, state->row_words, key);

	if (!kept && (state->held_out.left || key >= state->asked))
		learn_row(state, row);
}

static void
add_row(LeastSquares *state, const RowPlace *place, const float *values, uint32 width, float label, const float *weight)
{
	float	   *row;

	if (!isfinite(label))
		refuse_row(place, "a label is not a finite number", "Mend or remove the row.");
	if (!all_finite(values, width))
		refuse_row(place, value_flaw(state->options, NULL, values, width), "Fill or remove such values before training.");
	if (width == 0)
		refuse_row(place, "the features are an empty array", "Give an array of numbers for each row.");
	if (state->worker == NULL)
		start_survey(state, weight != NULL, width);
	else if (width != state->worker->learner.width)
		refuse_row(place, psprintf("a row has %u features where the others have %u", width, state->worker->learner.width),
				   "Give every row as many.");
	row = state->words + SURVEY_ROWS * state->row_words;
	row[0] = label;
	memcpy(row + 1, values, width * sizeof(float));
	if (weight)
		row[1 + width] = *weight;
	add_or_hold_out(state, row, key_of(state, place));
}

/* (state, features, label, options), or (state, features, label, weight, ctid, tableoid, options) with a ctid and tableoid or none. */
Datum
penstock_least_squares_add(PG_FUNCTION_ARGS)
{
	LeastSquares *state = PG_ARGISNULL(0) ? NULL : (LeastSquares *) PG_GETARG_POINTER(0);
	int			last = PG_NARGS() - 1;
	bool		weighted = last > 3;
	char		room[SHORT_MOST] pg_attribute_aligned(8);
	float		weight = 1;
	RowPlace	place = {0};
	ArrayType  *array;
	MemoryContext context;

	if (!AggCheckCallContext(fcinfo, &context))
		elog(ERROR, "penstock.least_squares is an aggregate");
	if (state == NULL)
	{
		if (PG_ARGISNULL(last))
			ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("the options are null"), errhint("Give '{}'.")));
		state = make_state(AllocSetContextCreate(context, "penstock least squares", ALLOCSET_DEFAULT_SIZES),
						   text_to_cstring(PG_GETARG_TEXT_PP(last)));
	}
	place.number = ++state->rows;
	if (weighted && !PG_ARGISNULL(4) && !PG_ARGISNULL(5) && ItemPointerIsValid((ItemPointer) PG_GETARG_POINTER(4)))
	{
		place.tid = (ItemPointer) PG_GETARG_POINTER(4);
		place.table = PG_GETARG_OID(5);
	}
	array = PG_ARGISNULL(1) ? NULL : plain_array(PG_GETARG_DATUM(1), room);
	if (weighted && !PG_ARGISNULL(3))
		weight = PG_GETARG_FLOAT4(3);
	if (weight == 0)
		state->skipped++;
	else if (array == NULL || PG_ARGISNULL(2) || (weighted && PG_ARGISNULL(3)) || (ARR_HASNULL(array) && array_contains_nulls(array)))
	{
		if (!state->options->skip_nulls)
			refuse_row(&place, psprintf("%s null", weighted && PG_ARGISNULL(3) ? "the weight is" : PG_ARGISNULL(2) ? "the label is"
										: missing_feature(state->options, PG_GETARG_DATUM(1), PG_ARGISNULL(1))),
					   "Fill or remove such rows, or leave them out: \"nulls\": \"skip\".");
		state->skipped++;
	}
	else if (!(weight > 0) || isinf(weight))
		refuse_row(&place, psprintf("the weight is %g", weight), WEIGHT_HINT);
	else if (ARR_NDIM(array) > 1)
		refuse_row(&place, "features are an array of more than one dimension", "Give one array of numbers for each row.");
	else
		add_row(state, &place, (const float *) ARR_DATA_PTR(array), ARR_NDIM(array) == 0 ? 0 : ARR_DIMS(array)[0], PG_GETARG_FLOAT4(2),
				weighted ? &weight : NULL);
	if (array && (Pointer) array != DatumGetPointer(PG_GETARG_DATUM(1)) && (char *) array != room)
		pfree(array);
	PG_RETURN_POINTER(state);
}

static void
merge(LeastSquares *to, LeastSquares *from)
{
	to->rows += from->rows;
	to->skipped += from->skipped;
	if (from->worker == NULL)
		return;
	take_in(from);
	if (to->worker == NULL)
		start_survey(to, from->worker->learner.weighted, from->worker->learner.width);
	else if (to->worker->learner.width != from->worker->learner.width)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("some rows have %u features where others have %u", from->worker->learner.width, to->worker->learner.width),
				 errhint("Give every row as many.")));
	take_in(to);
	survey_merge(to->worker->survey, from->worker->survey);
	sample_limit(&to->held_out, from->held_out.below);
	for (uint32 i = 0; i < from->held_out.rows; i++)
		add_or_hold_out(to, from->held_out.words + from->held_out.order[i], from->held_out.keys[i]);
}

Datum
penstock_least_squares_merge(PG_FUNCTION_ARGS)
{
	LeastSquares *to = PG_ARGISNULL(0) ? NULL : (LeastSquares *) PG_GETARG_POINTER(0);
	MemoryContext context;

	if (!AggCheckCallContext(fcinfo, &context))
		elog(ERROR, "penstock.least_squares is an aggregate");
	if (PG_ARGISNULL(1))
	{
		if (to == NULL)
			PG_RETURN_NULL();
		PG_RETURN_POINTER(to);
	}
	if (to == NULL)
		to = make_state(AllocSetContextCreate(context, "penstock least squares", ALLOCSET_DEFAULT_SIZES),
						((LeastSquares *) PG_GETARG_POINTER(1))->json);
	merge(to, (LeastSquares *) PG_GETARG_POINTER(1));
	PG_RETURN_POINTER(to);
}

/* Copies an array of doubles to or from a packed state; returns what follows it there. */
static char *
copy_doubles(char *place, double *values, Size count, bool out)
{
	if (out)
		memcpy(place, values, count * sizeof(double));
	else
		memcpy(values, place, count * sizeof(double));
	return place + count * sizeof(double);
}

static Size
product_count(Size width)
{
	return (width + 1) * (width + 2) / 2;
}

static char *
copy_sums(char *place, Survey *survey, bool out)
{
	Size		columns = (Size) survey->width + 1;

	place = copy_doubles(place, survey->mean, columns, out);
	place = copy_doubles(place, survey->square, columns, out);
	return copy_doubles(place, survey->products, product_count(survey->width), out);
}

Datum
penstock_least_squares_pack(PG_FUNCTION_ARGS)
{
	LeastSquares *state = (LeastSquares *) PG_GETARG_POINTER(0);
	Packed		packed = {0};
	Size		size = sizeof(Packed);
	char	   *to,
			   *place;

	packed.rows = state->rows;
	packed.skipped = state->skipped;
	packed.json_length = strlen(state->json);
	if (state->worker)
	{
		const Survey *survey = state->worker->survey;

		take_in(state);
		packed.width = survey->width;
		packed.weighted = survey->weighted;
		packed.surveyed = survey->rows;
		packed.mass = survey->mass;
		packed.label_sum = survey->label_sum;
		packed.below = state->held_out.below;
		packed.held_out = state->held_out.rows;
		size += sizeof(double) * (2 * ((Size) survey->width + 1) + product_count(survey->width));
		size += (state->row_words * sizeof(float) + sizeof(uint32)) * state->held_out.rows;
	}
	to = palloc(size + packed.json_length);
	place = to + sizeof(Packed);
	if (state->worker)
	{
		place = copy_sums(place, state->worker->survey, true);
		for (uint32 i = 0; i < state->held_out.rows; i++)
		{
			memcpy(place, &state->held_out.keys[i], sizeof(uint32));
			memcpy(place + sizeof(uint32), state->held_out.words + state->held_out.order[i], state->row_words * sizeof(float));
			place += sizeof(uint32) + state->row_words * sizeof(float);
		}
	}
	memcpy(place, state->json, packed.json_length);
	memcpy(to, &packed, sizeof(Packed));
	SET_VARSIZE(to, size + packed.json_length);
	PG_RETURN_BYTEA_P(to);
}

Datum
penstock_least_squares_unpack(PG_FUNCTION_ARGS)
{
	bytea	   *from = PG_GETARG_BYTEA_P(0);
	char	   *place = (char *) from + sizeof(Packed);
	Packed		packed;
	LeastSquares *state;
	char	   *json;

	memcpy(&packed, from, sizeof(Packed));
	json = (char *) from + VARSIZE(from) - packed.json_length;
	state = make_state(CurrentMemoryContext, pnstrdup(json, packed.json_length));
	state->rows = packed.rows;
	state->skipped = packed.skipped;
	if (packed.width)
	{
		Survey	   *survey;
		float	   *row;

		start_survey(state, packed.weighted, packed.width);
		survey = state->worker->survey;
		survey->rows = packed.surveyed;
		survey->mass = packed.mass;
		survey->label_sum = packed.label_sum;
		place = copy_sums(place, survey, false);
		sample_limit(&state->held_out, packed.below);
		row = state->words + SURVEY_ROWS * state->row_words;
		for (uint32 i = 0; i < packed.held_out; i++)
		{
			uint32		key;

			memcpy(&key, place, sizeof(uint32));
			memcpy(row, place + sizeof(uint32), state->row_words * sizeof(float));
			sample_add(&state->held_out, state->context, SAMPLE_BYTES, row, state->row_words, key);
			place += sizeof(uint32) + state->row_words * sizeof(float);
		}
	}
	PG_RETURN_POINTER(state);
}

/* Takes rows that turn out to be too many to hold out into the sums. */
static void
settle_held_out(LeastSquares *state)
{
	uint64		rows = state->worker->survey->rows + state->pending + state->held_out.rows;

	if (state->held_out.left)
		sample_limit(&state->held_out, (uint64) (sample_share(rows) * ALL_KEYS));
	take_in(state);
	if (state->worker->survey->rows == 0)
		ereport(ERROR,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 errmsg("all rows are held out; there is nothing to learn from"),
				 errhint("Give a smaller validation than %g.", state->options->validation)));
}

/* Measures the weights found on the rows held out. */
static void
score_held_out(LeastSquares *state, Datum *values)
{
	Learner    *l = &state->worker->learner;

	/* Rows held out are as they came, and so are these weights. */
	memcpy(l->w, ARR_DATA_PTR(DatumGetArrayTypeP(values[EPOCH_COEF])), l->width * sizeof(float));
	memcpy(l->b, ARR_DATA_PTR(DatumGetArrayTypeP(values[EPOCH_INTERCEPT])), sizeof(float));
	score_rows(l, state->held_out.words, state->held_out.order, state->held_out.rows);
	values[EPOCH_HELD_OUT_LOSS] = Float8GetDatum(totals_loss(&l->totals));
	values[EPOCH_HELD_OUT_SCORE] = Float8GetDatum(totals_score(&l->totals, LOSS_SQUARED));
	values[EPOCH_HELD_OUT_ROWS] = Int64GetDatum((int64) l->totals.rows);
}

Datum
penstock_least_squares_solve(PG_FUNCTION_ARGS)
{
	LeastSquares *state = PG_ARGISNULL(0) ? NULL : (LeastSquares *) PG_GETARG_POINTER(0);
	TupleDesc	type = epoch_type(get_func_rettype(fcinfo->flinfo->fn_oid));
	Datum		values[EPOCH_COLUMNS];
	bool		nulls[EPOCH_COLUMNS] = {false},
				held_out;
	Worker	   *worker;
	int64		rows;

	if (state == NULL || state->worker == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NO_DATA_FOUND),
				 state && state->skipped ? errmsg("all rows have nulls or a weight of 0; there is nothing to learn from")
				 : errmsg("there are no rows to learn from")));
	settle_held_out(state);
	worker = state->worker;
	rows = (int64) worker->survey->rows;
	worker_surveyed(worker, state->options, worker->learner.width, false, 0);
	values[EPOCH_NUMBER] = Int32GetDatum(1);
	values[EPOCH_ROWS] = values[EPOCH_SAMPLE_ROWS] = Int64GetDatum(rows);
	values[EPOCH_TRAINING_SCORE] = Float8GetDatum(worker->spread > 0 ? 1 - worker->residual / worker->spread : worker->residual == 0);
	values[EPOCH_WEIGHT_MEAN] = Float8GetDatum(worker->weight_mean);
	worker_weights(worker, worker->learner.width, &values[EPOCH_COEF], &values[EPOCH_INTERCEPT]);
	nulls[EPOCH_LOSS] = nulls[EPOCH_SCORE] = nulls[EPOCH_SECONDS] = true;
	held_out = state->held_out.rows > 0;
	if (held_out)
		score_held_out(state, values);
	nulls[EPOCH_TRAINING_SCORE] = nulls[EPOCH_SAMPLE_ROWS] = held_out;
	nulls[EPOCH_HELD_OUT_LOSS] = nulls[EPOCH_HELD_OUT_SCORE] = nulls[EPOCH_HELD_OUT_ROWS] = !held_out;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(type, values, nulls)));
}

/* Whether options leave a model to be solved exactly, if its rows are dense and narrow. */
Datum
penstock_may_be_exact(PG_FUNCTION_ARGS)
{
	const Options *options = read_options(text_to_cstring(PG_GETARG_TEXT_PP(0)));

	PG_RETURN_BOOL(may_be_exact(options) && !options->read_only);
}
