/*
 * text_tally.c: the aggregate that says what a column of text holds, after TextTally of Penstock's columns/fit.py.
 *
 * Up to MOST_LEVELS values are counted one by one, and looked at when all rows are in. Above that a sketch counts them (the smallest of
 * their hashes), and each row's text is looked at as it comes: whether it may be a number or a date, and how many words it has.
 */
#include "postgres.h"

#include <float.h>
#include <math.h>

#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/json.h"

#include "penstock.h"
#include "spelling.h"
#include "texts.h"
#include "values.h"

PG_FUNCTION_INFO_V1(penstock_tally_add);
PG_FUNCTION_INFO_V1(penstock_tally_facts);

#define MOST_LEVELS 10000
#define LEVEL_ROWS 2			/* that a level needs for a feature of its own */
#define MOST_STRAYS 3			/* values that are no numbers or dates where the others are */
#define SKETCH 1024
#define HASH_BITS 31

static const char *const null_values[] = {"", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A"};

/* What texts may be as well: numbers, or dates. */
typedef struct Reading
{
	bool		possible;
	Texts	   *strays;
	int64		stray_rows;
	int64		missing;
	int64		rows;			/* with a finite number */
	double		origin;			/* sums are about the first number, so that a large mean costs no digits */
	double		sum;
	double		squares;
} Reading;

typedef struct Tally
{
	MemoryContext context;
	Texts	   *levels;			/* NULL where there are too many */
	int64		rows;
	int64		missing;
	int64		words;
	int64		null_words;		/* different values that stand for missing ones */
	Spelling	spelling;
	Reading		numbers;
	Reading		dates;
	int64		zoned;			/* dates with and without a zone */
	int64		plain;
	uint32		months;			/* that occur, as bits */
	uint32		weekdays;
	uint32		hours;
	uint32		seed;
	uint32		sketch[SKETCH]; /* the smallest hashes, ascending */
	int			sketch_count;
} Tally;

static void
reading_add(Reading *reading, double value, int64 count)
{
	if (isnan(value))
		reading->missing += count;
	if (!isfinite(value))
		return;
	if (reading->rows == 0)
		reading->origin = value;
	value -= reading->origin;
	reading->rows += count;
	reading->sum += value * count;
	reading->squares += value * value * count;
}

static void
reading_stray(Reading *reading, const char *text, uint32 size, int64 count)
{
	texts_add(reading->strays, text, size);
	reading->stray_rows += count;
	reading->missing += count;
	reading->possible = reading->strays->count <= MOST_STRAYS;
}

static void
sketch_add(Tally *tally, const char *text, uint32 size)
{
	uint32		hash = murmur3(text, size, tally->seed) & (((uint32) 1 << HASH_BITS) - 1);
	int			low = 0,
				high = tally->sketch_count;

	if (tally->sketch_count == SKETCH && hash >= tally->sketch[SKETCH - 1])
		return;
	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (tally->sketch[middle] < hash)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < tally->sketch_count && tally->sketch[low] == hash)
		return;
	tally->sketch_count = Min(tally->sketch_count + 1, SKETCH);
	memmove(tally->sketch + low + 1, tally->sketch + low, sizeof(uint32) * (tally->sketch_count - low - 1));
	tally->sketch[low] = hash;
}

static bool
is_null_value(const char *text, uint32 size)
{
	for (int i = 0; size <= 4 && i < lengthof(null_values); i++)
		if (strlen(null_values[i]) == size && memcmp(null_values[i], text, size) == 0)
			return true;
	return false;
}

/* Whether a text begins as codes do that are written as numbers, such as 01067. */
static bool
is_code(const char *text, uint32 size)
{
	uint32		at = size > 0 && (*text == '-' || *text == '+');

	return at + 1 < size && text[at] == '0' && text[at + 1] >= '0' && text[at + 1] <= '9';
}

static void
look_at_date(Tally *tally, const char *text, uint32 size, int64 count)
{
	int64		moment;
	bool		zoned;

	if (!parse_moment(text, size, &moment, &zoned))
	{
		reading_stray(&tally->dates, text, size, count);
		return;
	}
	tally->zoned += zoned;
	tally->plain += !zoned;
	reading_add(&tally->dates, days_of(moment), count);
	tally->months |= 1 << date_part_of(moment, DATE_MONTH);
	tally->weekdays |= 1 << date_part_of(moment, DATE_WEEKDAY);
	tally->hours |= 1 << date_part_of(moment, DATE_HOUR);
}

/* Looks at a value that so many rows have. */
static void
look_at(Tally *tally, const char *text, uint32 size, int64 count)
{
	const char *at = text,
			   *word;
	uint32		word_size;
	double		number;

	while (next_word(&at, text + size, &word, &word_size))
		tally->words += count;
	sketch_add(tally, text, size);
	if (is_null_value(text, size))
	{
		tally->null_words++;
		tally->numbers.missing += count;
		tally->dates.missing += count;
		return;
	}
	spelling_add(&tally->spelling, text, size, is_code(text, size), count);
	tally->numbers.possible &= !tally->spelling.codes;
	if (tally->numbers.possible)
	{
		if (parse_number(text, size, &number))
			reading_add(&tally->numbers, number, count);
		else
			reading_stray(&tally->numbers, text, size, count);
	}
	if (tally->dates.possible)
		look_at_date(tally, text, size, count);
}

static void
look_at_levels(Tally *tally)
{
	for (int32 i = 0; i < tally->levels->count; i++)
		look_at(tally, tally->levels->texts[i], tally->levels->sizes[i], tally->levels->numbers[i]);
}

static Tally *
tally_make(MemoryContext context, text *column)
{
	Tally	   *tally = MemoryContextAllocZero(context, sizeof(Tally));
	char	   *name = pg_server_to_any(VARDATA_ANY(column), VARSIZE_ANY_EXHDR(column), PG_UTF8);

	tally->context = context;
	tally->levels = texts_make(AllocSetContextCreate(context, "penstock levels", ALLOCSET_DEFAULT_SIZES));
	tally->numbers.possible = tally->dates.possible = true;
	tally->numbers.strays = texts_make(context);
	tally->dates.strays = texts_make(context);
	spelling_start(&tally->spelling, context);
	tally->seed = murmur3(name, name == VARDATA_ANY(column) ? VARSIZE_ANY_EXHDR(column) : strlen(name), 0);
	return tally;
}

/* penstock.tally_add(state internal, value text, column text) */
Datum
penstock_tally_add(PG_FUNCTION_ARGS)
{
	Tally	   *tally = PG_ARGISNULL(0) ? NULL : (Tally *) PG_GETARG_POINTER(0);
	MemoryContext context;
	text	   *value;

	if (!AggCheckCallContext(fcinfo, &context))
		elog(ERROR, "penstock.tally_add is for an aggregate");
	if (tally == NULL)
		tally = tally_make(context, PG_GETARG_TEXT_PP(2));
	tally->rows++;
	if (PG_ARGISNULL(1))
	{
		tally->missing++;
		PG_RETURN_POINTER(tally);
	}
	value = PG_GETARG_TEXT_PP(1);
	if (tally->levels == NULL)
		look_at(tally, VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value), 1);
	else
	{
		int32		place = texts_add(tally->levels, VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));

		tally->levels->numbers[place]++;
		if (tally->levels->count > MOST_LEVELS)
		{
			look_at_levels(tally);
			MemoryContextDelete(tally->levels->context);
			tally->levels = NULL;
		}
	}
	PG_RETURN_POINTER(tally);
}

static int
compare_texts(const void *a, const void *b)
{
	return strcmp(*(char *const *) a, *(char *const *) b);	/* UTF-8 by bytes is by code points */
}

static void
append_texts(StringInfo out, char **texts, int count)
{
	appendStringInfoChar(out, '[');
	for (int i = 0; i < count; i++)
	{
		if (i)
			appendStringInfoChar(out, ',');
		escape_json(out, texts[i]);
	}
	appendStringInfoChar(out, ']');
}

static void
append_number(StringInfo out, const char *name, double value)
{
	appendStringInfo(out, ",\"%s\":%.17g", name, Max(Min(value, DBL_MAX), -DBL_MAX));
}

static void
append_levels(StringInfo out, const Tally *tally)
{
	const Texts *levels = tally->levels;
	char	  **common;
	int			count = 0;

	if (levels == NULL)
		return;
	common = palloc(sizeof(char *) * Max(levels->count, 1));
	for (int32 i = 0; i < levels->count; i++)
		if (levels->numbers[i] >= LEVEL_ROWS)
			common[count++] = levels->texts[i];
	qsort(common, count, sizeof(char *), compare_texts);
	appendStringInfo(out, ",\"rare\":%s,\"levels\":", count < levels->count ? "true" : "false");
	append_texts(out, common, count);
}

static void
append_reading(StringInfo out, const char *name, const Reading *reading, bool possible)
{
	double		rows = Max(reading->rows, 1),
				mean = reading->sum / rows;

	if (!possible || reading->rows == 0)
		return;
	appendStringInfo(out, ",\"%s\":{\"strays\":", name);
	append_texts(out, reading->strays->texts, reading->strays->count);
	append_number(out, "stray_rows", reading->stray_rows);
	append_number(out, "missing", reading->missing);
	append_number(out, "mean", reading->origin + mean);
	append_number(out, "variance", Max(reading->squares / rows - mean * mean, 0));
	appendStringInfoChar(out, '}');
}

/* penstock.tally_facts(state internal) returns jsonb */
Datum
penstock_tally_facts(PG_FUNCTION_ARGS)
{
	Tally	   *tally = PG_ARGISNULL(0) ? NULL : (Tally *) PG_GETARG_POINTER(0);
	StringInfoData out;
	double		distinct;

	if (tally == NULL)
		PG_RETURN_NULL();
	if (tally->levels)
		look_at_levels(tally);
	distinct = tally->levels ? tally->levels->count : tally->sketch_count;
	if (tally->levels == NULL && tally->sketch_count == SKETCH)
		distinct = (SKETCH - 1) * pow(2, HASH_BITS) / ((double) tally->sketch[SKETCH - 1] + 1);
	initStringInfo(&out);
	appendStringInfo(&out, "{\"rows\":" INT64_FORMAT, tally->rows);
	append_number(&out, "missing", tally->missing);
	append_number(&out, "words", tally->words);
	append_number(&out, "distinct", distinct);
	append_number(&out, "null_words", tally->null_words);
	spelling_append(&tally->spelling, &out);
	append_number(&out, "months", tally->months);
	append_number(&out, "weekdays", tally->weekdays);
	append_number(&out, "hours", tally->hours);
	append_levels(&out, tally);
	append_reading(&out, "numbers", &tally->numbers, tally->numbers.possible);
	append_reading(&out, "dates", &tally->dates, tally->dates.possible && (tally->zoned == 0 || tally->plain == 0));
	appendStringInfoChar(&out, '}');
	return DirectFunctionCall1(jsonb_in, CStringGetDatum(out.data));
}
