/*
 * recipe.c: makes features of values by a recipe, as Penstock's columns/ does in Python.
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

#include "arrays.h"
#include "recipe.h"

static inline void
add_feature(Recipe *recipe, uint32 index, double value)
{
	if (recipe->count == recipe->room)
	{
		recipe->room *= 2;
		recipe->indices = repalloc(recipe->indices, sizeof(int32) * recipe->room);
		recipe->values = repalloc(recipe->values, sizeof(float) * recipe->room);
	}
	recipe->indices[recipe->count] = (int32) index;
	recipe->values[recipe->count++] = (float) value;
}

NEVER_RETURNS static void
refuse_text(const Recipe *recipe, const Part *part, const Value *value)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_EXCEPTION),
			 errmsg("column \"%s\" is \"%s\" in a row, where %s were learnt from", recipe->fields[part->field],
					pnstrdup(value->text, Min(value->size, 100)), part->kind == PART_NUMBER ? "numbers" : "dates"),
			 errhint("Mend the value, or make it null.")));
}

static inline bool
is_null_value(const Part *part, const Value *value)
{
	return value->form == FORM_TEXT && part->null_values->count > 0 && texts_find(part->null_values, value->text, value->size) >= 0;
}

static void
encode_number(Recipe *recipe, const Part *part, const Value *value)
{
	double		number = value->number;
	bool		missing = value->missing || is_null_value(part, value);

	if (!missing && value->form == FORM_TEXT)
	{
		if (!parse_number(value->text, value->size, &number))
			refuse_text(recipe, part, value);
		missing = isnan(number);
	}
	else if (!missing && value->form == FORM_MOMENT)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" is a date, where a number was learnt from", recipe->fields[part->field])));
	else if (!missing)
		for (int i = 0; i < part->null_number_count; i++)
			missing |= (float) number == part->null_numbers[i];
	recipe->complete &= part->fills || !missing;
	add_feature(recipe, part->start, ((missing ? part->fill : number) - part->center) * part->scale);
	if (missing && part->missing)
		add_feature(recipe, part->start + 1, 1);
}

/* Gives the moment that a date is; false where it is missing. */
static bool
moment_of(Recipe *recipe, const Part *part, const Value *value, int64 *moment)
{
	bool		zoned;

	if (value->missing || is_null_value(part, value))
		return false;
	*moment = value->moment;
	if (value->form == FORM_NUMBER)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" is a number, where dates were learnt from", recipe->fields[part->field])));
	if (value->form == FORM_TEXT && !parse_moment(value->text, value->size, moment, &zoned))
		refuse_text(recipe, part, value);
	return true;
}

static void
encode_date(Recipe *recipe, const Part *part, const Value *value)
{
	int64		moment;

	if (moment_of(recipe, part, value, &moment))
		add_feature(recipe, part->start, (days_of(moment) - part->center) * part->scale);
	else if (part->missing)
		add_feature(recipe, part->start + 1, 1);
}

static void
encode_category(Recipe *recipe, const Part *part, const Value *value)
{
	char		room[12];
	const char *text = value->text;
	uint32		size = value->size;
	bool		missing = value->missing;
	int64		moment;
	int32		place = -1;

	if (part->date_part != WHOLE_DATE)
	{
		missing = !moment_of(recipe, part, value, &moment);
		if (!missing)
		{
			size = snprintf(room, sizeof(room), "%d", date_part_of(moment, part->date_part));
			text = room;
		}
	}
	if (!missing)
		place = texts_find(part->levels, text, size);
	if (place >= 0 && part->levels->numbers[place] >= 0)
		add_feature(recipe, part->start + (uint32) part->levels->numbers[place], 1);
	else if (missing || place >= 0)
	{
		if (part->missing)
			add_feature(recipe, part->start + part->level_count + part->rare, 1);
	}
	else if (part->rare)
		add_feature(recipe, part->start + part->level_count, 1);
}

static void
encode_hash(Recipe *recipe, const Part *part, const Value *value)
{
	const char *text,
			   *end,
			   *word;
	uint32		size;

	if (value->missing || is_null_value(part, value))
	{
		if (part->missing)
			add_feature(recipe, part->start + part->mask + 1, 1);
		return;
	}
	text = pg_server_to_any(value->text, value->size, PG_UTF8);
	end = text + (text == value->text ? value->size : strlen(text));
	while (part->words ? next_word(&text, end, &word, &size) : text != NULL)
	{
		uint32		code;

		if (!part->words)
		{
			word = text;
			size = end - text;
			text = NULL;
		}
		code = murmur3(word, size, part->seed);
		add_feature(recipe, part->start + (code & part->mask), code >> 31 ? -1 : 1);
	}
}

static void
encode_vector(Recipe *recipe, const Part *part, Datum array, bool isnull)
{
	char		room[SHORT_MOST] pg_attribute_aligned(8);
	uint32		count = 0;
	const float *values = isnull ? NULL : float_values(array, room, &count);

	recipe->complete &= values != NULL;
	if (values != NULL && count != part->width)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("column \"%s\" has %u features in a row, where %u were learnt from", recipe->fields[part->field], count, part->width)));
	for (uint32 i = 0; values != NULL && i < count; i++)
		add_feature(recipe, part->start + i, values[i]);
}

Encoder *
encoder_make(MemoryContext context, Jsonb *parts, bool by_name)
{
	MemoryContext before = MemoryContextSwitchTo(context);
	Encoder    *encoder = palloc0(sizeof(Encoder));

	encoder->recipe = recipe_read(context, parts);
	encoder->by_name = by_name;
	encoder->places = palloc(sizeof(int) * Max(encoder->recipe->field_count, 1));
	encoder->readers = palloc0(sizeof(Reader) * Max(encoder->recipe->field_count, 1));
	encoder->fields = palloc0(sizeof(Value) * Max(encoder->recipe->field_count, 1));
	MemoryContextSwitchTo(before);
	return encoder;
}

static int
place_of(TupleDesc row, const char *name)
{
	for (int i = 0; i < row->natts; i++)
		if (!TupleDescAttr(row, i)->attisdropped && strcmp(NameStr(TupleDescAttr(row, i)->attname), name) == 0)
			return i;
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_COLUMN),
			 errmsg("the row has no column \"%s\", which the model was learnt from", name)));
}

/* Finds the recipe's columns in rows of another type than those before. */
static void
settle_row(Encoder *encoder, Oid type, int32 modifier)
{
	Recipe	   *recipe = encoder->recipe;
	MemoryContext before = MemoryContextSwitchTo(recipe->context);
	TupleDesc	row = lookup_rowtype_tupdesc_copy(type, modifier);

	encoder->type = InvalidOid;
	encoder->datums = palloc(sizeof(Datum) * Max(row->natts, 1));
	encoder->nulls = palloc(sizeof(bool) * Max(row->natts, 1));
	if (!encoder->by_name && row->natts != recipe->field_count)
		elog(ERROR, "a row has %d values for %d columns of the recipe", row->natts, recipe->field_count);
	for (int i = 0; i < recipe->field_count; i++)
	{
		encoder->places[i] = encoder->by_name ? place_of(row, recipe->fields[i]) : i;
		reader_start(&encoder->readers[i], TupleDescAttr(row, encoder->places[i])->atttypid, recipe->context);
		if (recipe->as_array[i] && !OidIsValid(get_element_type(encoder->readers[i].type)))
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("column \"%s\" is %s, where an array of numbers was learnt from", recipe->fields[i],
							format_type_be(encoder->readers[i].type))));
	}
	encoder->row = row;
	encoder->type = type;
	encoder->modifier = modifier;
	MemoryContextSwitchTo(before);
}

bool
encoder_run(Encoder *encoder, HeapTupleHeader row)
{
	Recipe	   *recipe = encoder->recipe;
	Oid			type = HeapTupleHeaderGetTypeId(row);
	int32		modifier = HeapTupleHeaderGetTypMod(row);
	HeapTupleData tuple = {.t_data = row,.t_len = HeapTupleHeaderGetDatumLength(row)};

	if (encoder->type != type || encoder->modifier != modifier)
		settle_row(encoder, type, modifier);
	ItemPointerSetInvalid(&tuple.t_self);
	heap_deform_tuple(&tuple, encoder->row, encoder->datums, encoder->nulls);
	for (int i = 0; i < recipe->field_count; i++)
	{
		int			place = encoder->places[i];

		if (recipe->as_array[i])
			continue;
		if (recipe->as_text[i])
			read_text(&encoder->readers[i], encoder->datums[place], encoder->nulls[place], recipe->fields[i], &encoder->fields[i]);
		else
			read_value(&encoder->readers[i], encoder->datums[place], encoder->nulls[place], &encoder->fields[i]);
	}
	recipe->count = 0;
	recipe->complete = true;
	for (int i = 0; i < recipe->part_count; i++)
	{
		const Part *part = &recipe->parts[i];
		const Value *value = &encoder->fields[part->field];

		switch (part->kind)
		{
			case PART_NUMBER:
				encode_number(recipe, part, value);
				break;
			case PART_DATE:
				encode_date(recipe, part, value);
				break;
			case PART_CATEGORY:
				encode_category(recipe, part, value);
				break;
			case PART_HASH:
				encode_hash(recipe, part, value);
				break;
			case PART_VECTOR:
				encode_vector(recipe, part, encoder->datums[encoder->places[part->field]], encoder->nulls[encoder->places[part->field]]);
		}
	}
	return recipe->complete;
}
