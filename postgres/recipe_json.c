/*
 * recipe_json.c: reads a recipe from JSON, as models have it.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/numeric.h"

#include "penstock.h"
#include "recipe.h"

#define MOST_FEATURES 250000000

NEVER_RETURNS static void
refuse_recipe(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("the recipe of these columns cannot be read here: %s", what),
			 errhint("Predict with SELECT … PREDICT BY of penstock sql.")));
}

static bool
look_up(JsonbContainer *object, const char *name, JsonbValue *value)
{
	return getKeyJsonValueFromContainer(object, name, strlen(name), value) != NULL && value->type != jbvNull;
}

static double
number_of(const JsonbValue *value)
{
	if (value->type != jbvNumeric)
		refuse_recipe("a number is none");
	return DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow, NumericGetDatum(value->val.numeric)));
}

static double
number_at(JsonbContainer *object, const char *name, double otherwise)
{
	JsonbValue	value;

	return look_up(object, name, &value) ? number_of(&value) : otherwise;
}

static bool
flag_at(JsonbContainer *object, const char *name)
{
	JsonbValue	value;

	return look_up(object, name, &value) && value.type == jbvBool && value.val.boolean;
}

/* Adds the texts of an array to others; those that are new get `number` and, where `step` is set, the numbers after it. */
static int
add_texts(JsonbContainer *object, const char *name, Texts *texts, int64 number, int step)
{
	JsonbValue	list;
	int			count;

	if (!look_up(object, name, &list))
		return 0;
	if (list.type != jbvBinary || !JsonContainerIsArray(list.val.binary.data))
		refuse_recipe(name);
	count = JsonContainerSize(list.val.binary.data);
	for (int i = 0; i < count; i++, number += step)
	{
		JsonbValue *text = getIthJsonbValueFromContainer(list.val.binary.data, i);
		int32		place;

		if (text->type != jbvString)
			refuse_recipe(name);
		place = texts_add(texts, text->val.string.val, text->val.string.len);
		texts->numbers[place] = number;
		pfree(text);
	}
	return count;
}

static int
field_for(Recipe *recipe, const char *name, uint32 size)
{
	int			at = 0;

	while (at < recipe->field_count && (strlen(recipe->fields[at]) != size || memcmp(recipe->fields[at], name, size) != 0))
		at++;
	if (at == recipe->field_count)
		recipe->fields[recipe->field_count++] = pnstrdup(name, size);
	return at;
}

static void
set_null_numbers(Part *part)
{
	part->null_numbers = palloc(sizeof(float) * Max(part->null_values->count, 1));
	for (int32 i = 0; i < part->null_values->count; i++)
	{
		double		number;

		if (parse_number(part->null_values->texts[i], part->null_values->sizes[i], &number))
			part->null_numbers[part->null_number_count++] = (float) number;
	}
}

static void
read_hash(JsonbContainer *object, Part *part)
{
	JsonbValue	list,
			   *item;
	double		bits;

	if (!look_up(object, "hashed", &list) || list.type != jbvBinary || JsonContainerSize(list.val.binary.data) != 3)
		refuse_recipe("hashed");
	item = getIthJsonbValueFromContainer(list.val.binary.data, 0);
	part->seed = murmur3(item->val.string.val, item->val.string.len, 0);
	bits = number_of(getIthJsonbValueFromContainer(list.val.binary.data, 1));
	if (bits < 1 || bits > 27)
		refuse_recipe("it hashes to too many features");
	part->mask = ((uint32) 1 << (int) bits) - 1;
	part->words = getIthJsonbValueFromContainer(list.val.binary.data, 2)->val.boolean;
}

static void
read_part(Recipe *recipe, Part *part, JsonbContainer *object)
{
	JsonbValue	kind,
				columns,
				of,
				fill,
			   *column;
	const char *const date_parts[] = {"", "month", "weekday", "hour"};
	bool		as_text;

	if (!look_up(object, "kind", &kind) || kind.type != jbvString ||
		!look_up(object, "columns", &columns) || columns.type != jbvBinary ||
		(column = getIthJsonbValueFromContainer(columns.val.binary.data, 0)) == NULL || column->type != jbvString)
		refuse_recipe("a column has no name or kind");
	part->field = field_for(recipe, column->val.string.val, column->val.string.len);
	part->start = recipe->width;
	part->missing = flag_at(object, "missing");
	part->rare = flag_at(object, "rare");
	part->scale = number_at(object, "scale", 1);
	part->center = number_at(object, "center", 0);
	part->fills = look_up(object, "fill", &fill);
	part->fill = part->fills ? number_of(&fill) : 0;
	part->null_values = texts_make(recipe->context);
	add_texts(object, "null_values", part->null_values, 0, 0);
#define IS(word) (kind.val.string.len == strlen(word) && memcmp(kind.val.string.val, word, strlen(word)) == 0)
	if (IS("number"))
	{
		part->kind = PART_NUMBER;
		set_null_numbers(part);
	}
	else if (IS("date"))
	{
		part->kind = PART_DATE;
		part->center = number_at(object, "origin", 0);
	}
	else if (IS("category"))
	{
		part->kind = PART_CATEGORY;
		part->levels = texts_make(recipe->context);
		part->level_count = add_texts(object, "levels", part->levels, 0, 1);
		add_texts(object, "null_values", part->levels, -1, 0);
		if (look_up(object, "of", &of) && of.type == jbvString)
			for (int i = DATE_MONTH; i <= DATE_HOUR; i++)
				if (of.val.string.len == strlen(date_parts[i]) && memcmp(of.val.string.val, date_parts[i], of.val.string.len) == 0)
					part->date_part = i;
	}
	else if (IS("hash"))
	{
		part->kind = PART_HASH;
		read_hash(object, part);
	}
	else if (IS("vector"))
	{
		part->kind = PART_VECTOR;
		part->width = (uint32) Max(Min(number_at(object, "width", 0), MOST_FEATURES), 0);
		recipe->as_array[part->field] = true;
	}
	else
		refuse_recipe(psprintf("it has a column of kind %s", pnstrdup(kind.val.string.val, kind.val.string.len)));
#undef IS
	as_text = part->kind == PART_HASH || (part->kind == PART_CATEGORY && part->date_part == WHOLE_DATE);
	recipe->as_text[part->field] |= as_text;
	recipe->width += part->missing;
	if (part->kind == PART_HASH)
		recipe->width += part->mask + 1;
	else if (part->kind == PART_VECTOR)
		recipe->width += part->width;
	else
		recipe->width += part->kind == PART_CATEGORY ? part->level_count + part->rare : 1;
	if (recipe->width > MOST_FEATURES)
		refuse_recipe("it makes too many features");
}

Recipe *
recipe_read(MemoryContext context, Jsonb *parts)
{
	Recipe	   *recipe = palloc0(sizeof(Recipe));

	if (!JB_ROOT_IS_ARRAY(parts))
		refuse_recipe("it is no list of columns");
	recipe->context = context;
	recipe->part_count = JB_ROOT_COUNT(parts);
	recipe->parts = palloc0(sizeof(Part) * Max(recipe->part_count, 1));
	recipe->fields = palloc0(sizeof(char *) * Max(recipe->part_count, 1));
	recipe->as_text = palloc0(sizeof(bool) * Max(recipe->part_count, 1));
	recipe->as_array = palloc0(sizeof(bool) * Max(recipe->part_count, 1));
	for (int i = 0; i < recipe->part_count; i++)
	{
		JsonbValue *part = getIthJsonbValueFromContainer(&parts->root, i);

		if (part->type != jbvBinary || !JsonContainerIsObject(part->val.binary.data))
			refuse_recipe("a column is no object");
		read_part(recipe, &recipe->parts[i], part->val.binary.data);
	}
	recipe->room = 2 * recipe->part_count + 16;
	recipe->indices = palloc(sizeof(int32) * recipe->room);
	recipe->values = palloc(sizeof(float) * recipe->room);
	return recipe;
}
