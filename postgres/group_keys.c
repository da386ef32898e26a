/*
 * group_keys.c: finds the group of a row, by a hash table of the keys that a model's header lists.
 *
 * A key is the values of all group columns as bytes: a mark for a null, else a whole number, a double, or a text with its length.
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/lsyscache.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

#include "group_keys.h"
#include "penstock.h"

#define EPOCH_DAYS (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE)

static const char *const kinds[] = {
	[KEY_TEXT] = "text",[KEY_INTEGER] = "integer",[KEY_BOOLEAN] = "boolean",[KEY_DATE] = "date",[KEY_TIMESTAMP] = "timestamp",
	[KEY_TIME] = "time",[KEY_FLOAT] = "float",
};

static void
add_text(StringInfo key, const char *text, uint32 size)
{
	appendStringInfoChar(key, 1);
	appendBinaryStringInfo(key, (const char *) &size, sizeof(size));
	appendBinaryStringInfo(key, text, size);
}

static void
add_whole(StringInfo key, int64 number)
{
	appendStringInfoChar(key, 1);
	appendBinaryStringInfo(key, (const char *) &number, sizeof(number));
}

static void
add_double(StringInfo key, double number)
{
	if (isnan(number))
		number = NAN;	/* all are one */
	number += 0.0;				/* and so are both zeros */
	appendStringInfoChar(key, 1);
	appendBinaryStringInfo(key, (const char *) &number, sizeof(number));
}

static void
add_null(StringInfo key)
{
	appendStringInfoChar(key, 0);
}

/* Gives an array of the header; NULL where there is none. */
static JsonbContainer *
list_of(Jsonb *groups, const char *name)
{
	JsonbValue	value;

	if (!JB_ROOT_IS_OBJECT(groups) || getKeyJsonValueFromContainer(&groups->root, name, strlen(name), &value) == NULL ||
		value.type != jbvBinary || !JsonContainerIsArray(value.val.binary.data))
		return NULL;
	return value.val.binary.data;
}

static bool
read_column(KeyColumn *column, JsonbContainer *names, JsonbContainer *words, int i)
{
	JsonbValue *name = getIthJsonbValueFromContainer(names, i),
			   *word = getIthJsonbValueFromContainer(words, i);

	if (name == NULL || name->type != jbvString || word == NULL || word->type != jbvString)
		return false;
	column->name = pnstrdup(name->val.string.val, name->val.string.len);
	for (column->kind = 0; column->kind < KEY_KINDS; column->kind++)
		if (strlen(kinds[column->kind]) == word->val.string.len &&
			memcmp(kinds[column->kind], word->val.string.val, word->val.string.len) == 0)
			return true;
	return false;
}

/* Adds a value of the header, a text or null, to each group's key; false where there are not as many. */
static bool
add_values(StringInfo keys, uint32 count, KeyKind kind, JsonbContainer *values)
{
	JsonbIterator *it = JsonbIteratorInit(values);
	JsonbValue	value;
	JsonbIteratorToken token;
	uint32		group = 0;

	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		char	   *text;

		if (token != WJB_ELEM)
			continue;
		if (group == count || (value.type != jbvNull && value.type != jbvString))
			return false;
		text = value.type == jbvNull ? NULL : pnstrdup(value.val.string.val, value.val.string.len);
		if (text == NULL)
			add_null(&keys[group++]);
		else if (kind == KEY_TEXT)
			add_text(&keys[group++], text, value.val.string.len);
		else if (kind == KEY_FLOAT)
			add_double(&keys[group++], DatumGetFloat8(DirectFunctionCall1(float8in, CStringGetDatum(text))));
		else
			add_whole(&keys[group++], DatumGetInt64(DirectFunctionCall1(int8in, CStringGetDatum(text))));
		if (text)
			pfree(text);
	}
	return group == count;
}

GroupKeys *
group_keys_read(MemoryContext context, Jsonb *groups)
{
	MemoryContext before = MemoryContextSwitchTo(context);
	GroupKeys  *keys = palloc0(sizeof(GroupKeys));
	JsonbContainer *by = list_of(groups, "by"),
			   *words = list_of(groups, "kinds"),
			   *values = list_of(groups, "keys");
	JsonbValue	value;
	StringInfoData *texts;
	bool		sound;

	keys->context = context;
	initStringInfo(&keys->key);
	if (by == NULL || words == NULL || values == NULL || JsonContainerSize(by) < 1 || JsonContainerSize(words) != JsonContainerSize(by) ||
		JsonContainerSize(values) != JsonContainerSize(by) || getKeyJsonValueFromContainer(&groups->root, "count", 5, &value) == NULL ||
		value.type != jbvNumeric)
		return NULL;
	keys->column_count = JsonContainerSize(by);
	keys->columns = palloc0(sizeof(KeyColumn) * keys->column_count);
	keys->count = DatumGetInt32(DirectFunctionCall1(numeric_int4, NumericGetDatum(value.val.numeric)));
	if (getKeyJsonValueFromContainer(&groups->root, "unseen", 6, &value) != NULL && value.type == jbvString)
		keys->pooled = value.val.string.len == 6 && memcmp(value.val.string.val, "pooled", 6) == 0;
	value = *getIthJsonbValueFromContainer(values, 0);
	sound = value.type == jbvBinary && JsonContainerIsArray(value.val.binary.data) &&
		JsonContainerSize(value.val.binary.data) == keys->count;
	texts = palloc(sizeof(StringInfoData) * (sound ? Max(keys->count, 1) : 1));
	for (uint32 g = 0; sound && g < keys->count; g++)
	{
		texts[g].maxlen = 16;
		texts[g].data = palloc(texts[g].maxlen);
		resetStringInfo(&texts[g]);
	}
	for (int i = 0; sound && i < keys->column_count; i++)
	{
		value = *getIthJsonbValueFromContainer(values, i);
		sound = read_column(&keys->columns[i], by, words, i) && value.type == jbvBinary && JsonContainerIsArray(value.val.binary.data) &&
			add_values(texts, keys->count, keys->columns[i].kind, value.val.binary.data);
	}
	keys->keys = texts_make(context);
	for (uint32 g = 0; sound && g < keys->count; g++)
	{
		sound = texts_add(keys->keys, texts[g].data, texts[g].len) == g;	/* no two are alike */
		pfree(texts[g].data);
	}
	pfree(texts);
	MemoryContextSwitchTo(before);
	return sound ? keys : NULL;
}

static bool
is_of_kind(Oid type, KeyKind kind)
{
	switch (type)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case OIDOID:
			return kind == KEY_INTEGER;
		case BOOLOID:
			return kind == KEY_BOOLEAN;
		case FLOAT4OID:
		case FLOAT8OID:
		case NUMERICOID:
			return kind == KEY_FLOAT;
		case DATEOID:
			return kind == KEY_DATE;
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			return kind == KEY_TIMESTAMP;
		case TIMEOID:
			return kind == KEY_TIME;
		default:
			return kind == KEY_TEXT;
	}
}

/* Finds the group columns in rows of another type than those before. */
static void
settle_row(GroupKeys *keys, Oid type, int32 modifier)
{
	MemoryContext before = MemoryContextSwitchTo(keys->context);
	TupleDesc	row = lookup_rowtype_tupdesc_copy(type, modifier);

	keys->type = InvalidOid;
	for (int i = 0; i < keys->column_count; i++)
	{
		KeyColumn  *column = &keys->columns[i];
		Oid			output;
		bool		varlena;

		column->place = 0;
		for (int at = 0; at < row->natts && column->place == 0; at++)
			if (!TupleDescAttr(row, at)->attisdropped && strcmp(NameStr(TupleDescAttr(row, at)->attname), column->name) == 0)
				column->place = at + 1;
		if (column->place == 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("the row has no column \"%s\", by which the models' groups were made", column->name)));
		column->type = getBaseType(TupleDescAttr(row, column->place - 1)->atttypid);
		if (!is_of_kind(column->type, column->kind))
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("column \"%s\" is %s, where groups were made by %s values", column->name, format_type_be(column->type),
							kinds[column->kind])));
		getTypeOutputInfo(column->type, &output, &varlena);
		fmgr_info_cxt(output, &column->output, keys->context);
	}
	keys->row = row;
	keys->type = type;
	keys->modifier = modifier;
	MemoryContextSwitchTo(before);
}

static void
add_datum(StringInfo key, KeyColumn *column, Datum datum)
{
	switch (column->type)
	{
		case INT2OID:
			add_whole(key, DatumGetInt16(datum));
			break;
		case INT4OID:
			add_whole(key, DatumGetInt32(datum));
			break;
		case INT8OID:
		case TIMEOID:
			add_whole(key, DatumGetInt64(datum));
			break;
		case OIDOID:
			add_whole(key, DatumGetObjectId(datum));
			break;
		case BOOLOID:
			add_whole(key, DatumGetBool(datum));
			break;
		case DATEOID:
			add_whole(key, (int64) DatumGetDateADT(datum) + EPOCH_DAYS);
			break;
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			add_whole(key, DatumGetTimestamp(datum) + EPOCH_DAYS * USECS_PER_DAY);
			break;
		case FLOAT4OID:
			add_double(key, DatumGetFloat4(datum));
			break;
		case FLOAT8OID:
			add_double(key, DatumGetFloat8(datum));
			break;
		case NUMERICOID:
			add_double(key, DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow, datum)));
			break;
		case TEXTOID:
		case VARCHAROID:
			{
				struct varlena *text = PG_DETOAST_DATUM_PACKED(datum);

				add_text(key, VARDATA_ANY(text), VARSIZE_ANY_EXHDR(text));
				break;
			}
		case BPCHAROID:
			{
				struct varlena *text = PG_DETOAST_DATUM_PACKED(datum);

				add_text(key, VARDATA_ANY(text), bpchartruelen(VARDATA_ANY(text), VARSIZE_ANY_EXHDR(text)));
				break;
			}
		default:
			{
				char	   *text = OutputFunctionCall(&column->output, datum);

				add_text(key, text, strlen(text));
			}
	}
}

int32
group_keys_find(GroupKeys *keys, HeapTupleHeader row)
{
	Oid			type = HeapTupleHeaderGetTypeId(row);
	int32		modifier = HeapTupleHeaderGetTypMod(row);
	HeapTupleData tuple = {.t_data = row,.t_len = HeapTupleHeaderGetDatumLength(row)};

	if (keys->type != type || keys->modifier != modifier)
		settle_row(keys, type, modifier);
	ItemPointerSetInvalid(&tuple.t_self);
	resetStringInfo(&keys->key);
	for (int i = 0; i < keys->column_count; i++)
	{
		bool		isnull;
		Datum		datum = heap_getattr(&tuple, keys->columns[i].place, keys->row, &isnull);

		if (isnull)
			add_null(&keys->key);
		else
			add_datum(&keys->key, &keys->columns[i], datum);
	}
	return texts_find(keys->keys, keys->key.data, keys->key.len);
}
