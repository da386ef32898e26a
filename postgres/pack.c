/*
 * pack.c: a row of the server's as a run of float32, checked.
 *
 * Rows that cannot be learnt from are refused by their place in the table: nulls, numbers that are not finite, labels that
 * are no class, another number of features than the rows before.
 */
#include "postgres.h"

#include <math.h>

#include "utils/memutils.h"

#include "tuple_shuffle.h"

static inline Datum
value_of(const Argument *argument, TupleTableSlot *slot, ExprContext *econtext, bool *isnull)
{
	if (argument->column)
		return slot_getattr(slot, argument->column, isnull);
	return ExecEvalExpr(argument->expression, econtext, isnull);
}

int
err_place(ItemPointer tid, const char *table, uint64 number)
{
	if (table == NULL)
		return errdetail("The row is number " UINT64_FORMAT " of those that the query gave.", number);
	return errdetail("The row is at ctid (%u,%u) of \"%s\".", ItemPointerGetBlockNumberNoCheck(tid),
					 ItemPointerGetOffsetNumberNoCheck(tid), table);
}

/* Says which row an error is about, as well as it can be said. */
static int
err_row(TupleShuffle *state)
{
	ItemPointerData tid;
	const char *table;

	if (!block_shuffle_last(linitial(state->css.custom_ps), &tid, &table))
		table = NULL;
	return err_place(&tid, table, state->seen + 1);
}

NEVER_RETURNS static void
refuse_row(TupleShuffle *state, const char *why, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_EXCEPTION),
			 errmsg("%s", why), err_row(state), errhint("%s", hint)));
}

/* Gives an array's elements and their number; false where it holds a null. `room` has SHORT_MOST bytes. */
static inline bool
elements_of(TupleShuffle *state, Datum datum, char *room, const void **elements, uint32 *count)
{
	ArrayType  *array = plain_array(datum, room);

	if (ARR_NDIM(array) > 1)
		refuse_row(state, "features are an array of more than one dimension", "Give one array of numbers for each row.");
	*count = ARR_NDIM(array) == 0 ? 0 : (uint32) ARR_DIMS(array)[0];
	*elements = ARR_DATA_PTR(array);
	return !ARR_HASNULL(array) || !array_contains_nulls(array);
}

bool
label_target(const Options *options, float label, float *target)
{
	int			code = 0;

	*target = label;
	if (options->class_count == 0)
		return options->loss == LOSS_SQUARED ? isfinite(label)
			: options->loss == LOSS_SOFTMAX ? label >= 0 && label < options->outputs && label == floorf(label)
			: label == -1 || label == 1;
	while (code < options->class_count && options->classes[code] != label)
		code++;
	*target = options->loss == LOSS_SOFTMAX ? code : 2 * code - 1;
	return code < options->class_count;
}

const char *
label_flaw(const Options *options, float label, const char **hint)
{
	*hint = "Name all of them in \"classes\".";
	if (isnan(label) && options->class_count == 0 && options->loss != LOSS_SQUARED)
		return "a label is not one of the classes";
	if (!isfinite(label))
	{
		*hint = "Mend or remove the row.";
		return "a label is not a finite number";
	}
	if (options->class_count > 0)
		return psprintf("the label %g is not one of the classes", label);
	*hint = options->loss == LOSS_SOFTMAX ? "Targets are 0 to outputs - 1; \"classes\" lists labels of other values."
		: "Targets are -1 and 1; \"classes\" lists labels of other values, such as [0, 1].";
	return psprintf("the label %g is not a target", label);
}

/* Turns a label into the target that stands for it. */
static inline float
target_of(TupleShuffle *state, float label)
{
	const char *hint,
			   *why;
	float		target;

	if (label_target(state->options, label, &target))
		return target;
	why = label_flaw(state->options, label, &hint);
	refuse_row(state, why, hint);
}

/* A feature as the user knows it: by its column, else by its index or place. */
static char *
feature_name(const Options *options, const int32 *indices, uint32 i, uint32 count)
{
	uint32		place = indices ? (uint32) indices[i] : i;

	if (place < options->name_count)
		return psprintf("the column \"%s\"", options->names[place]);
	if (indices)
		return psprintf("the feature of index %d", indices[i]);
	return psprintf("feature %u of %u", i + 1, count);
}

const char *
value_flaw(const Options *options, const int32 *indices, const float *values, uint32 count)
{
	uint32		i = 0;

	while (i + 1 < count && isfinite(values[i]))
		i++;
	return psprintf("%s is %g, not a finite number", feature_name(options, indices, i, count), values[i]);
}

/* What to say of features that are missing: where columns were put together, the first of these that is null. */
const char *
missing_feature(const Options *options, Datum datum, bool isnull)
{
	ArrayType  *array = isnull ? NULL : DatumGetArrayTypeP(datum);
	unsigned char *present = array ? ARR_NULLBITMAP(array) : NULL;
	uint32		i = 0;

	if (present == NULL || options->name_count == 0)
		return "the features are or hold a";
	while (present[i / 8] & (1 << (i % 8)))
		i++;
	return psprintf("%s is", feature_name(options, NULL, i, ARR_DIMS(array)[0]));
}

static inline void
refuse_missing(TupleShuffle *state, const char *what)
{
	if (!state->options->skip_nulls)
		refuse_row(state, psprintf("%s null", what), "Fill or remove such rows, or leave them out: \"nulls\": \"skip\".");
	state->skipped++;
}

/* Reads what a row counts; false where it is left out: it counts nothing, or is not to be told of. */
static bool
weigh(TupleShuffle *state, TupleTableSlot *slot, ExprContext *econtext, float *weight)
{
	bool		isnull;
	Datum		datum = value_of(&state->arguments[3], slot, econtext, &isnull);

	if (isnull)
	{
		refuse_missing(state, "the weight is");
		return false;
	}
	*weight = DatumGetFloat4(datum);
	if (!(*weight >= 0) || isinf(*weight))
		refuse_row(state, psprintf("the weight is %g", *weight), WEIGHT_HINT);
	state->skipped += *weight == 0;
	return *weight > 0;
}

/* The bytes that a row takes in a window, found without unpacking it. */
Size
packed_bytes(TupleShuffle *state, TupleTableSlot *slot, ExprContext *econtext)
{
	Size		bytes = (2 + state->weighted) * sizeof(float);	/* its label, its place, its weight */
	MemoryContext before = MemoryContextSwitchTo(econtext->ecxt_per_tuple_memory);

	for (int i = state->sparse ? 0 : 1; i < 2; i++)
	{
		bool		isnull;
		Datum		datum = value_of(&state->arguments[i], slot, econtext, &isnull);
		Size		raw = isnull ? 0 : toast_raw_datum_size(datum);

		bytes += Max(raw, ARR_OVERHEAD_NONULLS(1)) - ARR_OVERHEAD_NONULLS(1);
	}
	MemoryContextSwitchTo(before);
	return bytes;
}

static void
make_windows(TupleShuffle *state, uint32 first_width)
{
	Size		capacity = Min(state->buffer_bytes / 2 / sizeof(float), PG_UINT32_MAX);

	for (int i = 0; i < 2; i++)
	{
		state->windows[i].words = MemoryContextAllocHuge(state->buffers, capacity * sizeof(float));
		state->windows[i].capacity = capacity;
	}
	state->worker = worker_make(state->buffers, state->options, state->sparse, state->weighted, first_width);
}

void
refuse_size(TupleShuffle *state)
{
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("a buffer of " INT64_FORMAT " bytes is too small for %u rows of %zu bytes in each of its halves",
					state->buffer_bytes, state->options->batch_size, state->row_words * sizeof(float)),
			 errhint("Give a larger buffer_size or a smaller batch_size.")));
}

/* Appends a row; false where the window is full, and nothing is changed. */
static inline float *
room_for(Window *window, Size words)
{
	float	   *row = window->words + window->used;

	if (window->used + words + window->rows + 1 > window->capacity)
		return NULL;
	((uint32 *) window->words)[window->capacity - ++window->rows] = (uint32) window->used;
	window->used += words;
	return row;
}

/* Moves the last rows of a window on to another, which has room for them. */
static void
move_rows(Window *window, Window *other, uint32 count)
{
	uint32	   *order = (uint32 *) window->words + window->capacity;

	for (uint32 i = window->rows - count; i < window->rows; i++)
	{
		Size		from = order[-(int64) i - 1],
					to = i + 1 < window->rows ? order[-(int64) i - 2] : window->used;

		memcpy(room_for(other, to - from), window->words + from, (to - from) * sizeof(float));
	}
	if (count)
		window->used = order[-(int64) (window->rows - count) - 1];
	window->rows -= count;
}

/* Moves the rows that do not fill a batch on to the other window, which is free. */
void
carry_over(TupleShuffle *state, Window *window, Window *other)
{
	uint32		left = window->rows % state->options->batch_size;

	if (left == window->rows)
		refuse_size(state);
	move_rows(window, other, left);
}

/* Makes the last window of a pass, which is less than half full, about as large as the one before. */
void
even_out(TupleShuffle *state, Window *window, Window *other)
{
	uint32		batch = state->options->batch_size,
				kept = (window->rows + other->rows + 1) / 2,
			   *order = (uint32 *) window->words + window->capacity;

	kept += (batch - kept % batch) % batch;
	/* Where rows differ in length, those that are moved must not take more than what is free. */
	while (kept < window->rows &&
		   other->used + window->used - order[-(int64) kept - 1] + other->rows + window->rows - kept > other->capacity)
		kept += batch;
	if (kept < window->rows)
		move_rows(window, other, window->rows - kept);
}

/* Features as they are learnt from: centered and scaled, when the survey has told by what. */
static inline void
pack_dense(const Worker *worker, float *restrict to, const float *restrict values, uint32 n)
{
	const float *restrict center = worker->center,
			   *restrict factor = worker->factor;

	if (factor == NULL)
		memcpy(to, values, n * sizeof(float));
	else
		for (uint32 j = 0; j < n; j++)
			to[j] = (values[j] - center[j]) * factor[j];
}

static inline void
pack_sparse(const Worker *worker, float *to, const float *values, const int32 *indices, uint32 n)
{
	if (worker->factor == NULL)
		memcpy(to, values, n * sizeof(float));
	else
		for (uint32 e = 0; e < n; e++)
			to[e] = (uint32) indices[e] < worker->factors ? values[e] * worker->factor[indices[e]] : 0;
}

/* A row's key, by which it is sampled or held out: by its place in a table, else by its number. */
static uint32
key_of(TupleShuffle *state)
{
	uint64		place = state->seen;

	block_shuffle_place(linitial(state->css.custom_ps), &place);
	return sample_key(state->options->seed, place, 1);
}

/* Packs the row in a slot into a window; false where it does not fit. */
bool
pack_row(TupleShuffle *state, Window *window, TupleTableSlot *slot, ExprContext *econtext)
{
	char		rooms[2][SHORT_MOST] pg_attribute_aligned(8);
	const void *indices = NULL,
			   *values;
	uint32		n,
				index_count = 0;
	bool		isnull = false;
	Size		words;
	Datum		datum;
	uint32		key = state->held_out || state->keeping ? key_of(state) : 0;
	bool		held_out = key < state->held_out;
	float		label,
				weight = 1,
			   *row;

	if (held_out && !state->keeping)
		return true;
	if (state->weighted && !weigh(state, slot, econtext, &weight))
		return true;
	if (state->sparse)
	{
		datum = value_of(&state->arguments[0], slot, econtext, &isnull);
		if (isnull || !elements_of(state, datum, rooms[0], &indices, &index_count))
		{
			refuse_missing(state, "the indices are or hold a");
			return true;
		}
	}
	datum = value_of(&state->arguments[1], slot, econtext, &isnull);
	if (isnull || !elements_of(state, datum, rooms[1], &values, &n))
	{
		refuse_missing(state, state->options->skip_nulls ? "" : missing_feature(state->options, datum, isnull));
		return true;
	}
	datum = value_of(&state->arguments[2], slot, econtext, &isnull);
	if (isnull)
	{
		refuse_missing(state, "the label is");
		return true;
	}
	label = target_of(state, DatumGetFloat4(datum));
	if (state->sparse && index_count != n)
		refuse_row(state, psprintf("a row has %u indices and %u values", index_count, n), "Mend or remove the row.");
	if (!all_finite(values, n))
		refuse_row(state, value_flaw(state->options, indices, values, n), "Fill or remove such values before training.");
	if (state->sparse)
	{
		for (uint32 e = 0; e < n; e++)
		{
			int32		index = ((const int32 *) indices)[e];

			if (index < 0)
				refuse_row(state, psprintf("a row has the index %d", index), "Indices are 0 or more.");
			if ((uint32) index >= window->top)
				window->top = (uint32) index + 1;
		}
	}
	else if (state->worker == NULL)
	{
		state->width = n;
		if (n == 0)
			refuse_row(state, "the features are an empty array", "Give an array of numbers for each row.");
	}
	else if (n != state->width)
		refuse_row(state, psprintf("a row has %u features where the others have %u", n, state->width),
				   "Give every row as many.");
	if (state->worker == NULL)
		make_windows(state, state->sparse ? 1 : n);
	words = (state->sparse ? 2 + 2 * (Size) n : 1 + (Size) n) + state->weighted;
	state->row_words = words + 1;
	row = room_for(window, words);
	if (row == NULL)
		return false;
	row[0] = label;
	if (!state->sparse)
		pack_dense(state->worker, row + 1, values, n);
	else
	{
		memcpy(row + 1, &n, sizeof(n));
		memcpy(row + 2, indices, n * sizeof(int32));
		pack_sparse(state->worker, row + 2 + n, values, indices, n);
	}
	if (state->weighted)
		row[words - 1] = (float) (weight / state->worker->weight_mean);
	if (state->keeping && held_out == (state->held_out > 0))
		sample_add(&state->sample, state->buffers, Max((Size) state->buffer_bytes / 16, SAMPLE_BYTES), row, words, key);
	if (held_out)
	{
		window->used -= words;
		window->rows--;
	}
	return true;
}
