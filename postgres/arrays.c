/*
 * arrays.c: the arrays that predictions are made from: one of features, or the two of a sparse row, of any numbers.
 *
 * Those of float4 and int4 are read where they lie; others are converted first. A null among them gives a null.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "parser/parse_coerce.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "arrays.h"

/* An array that was compressed or stored apart, and what it looked like then. */
typedef struct Kept
{
	Size		size;
	char	   *stored;
	ArrayType  *array;
} Kept;

/* Gives an array that is the same for many rows, and unpacks it once. */
ArrayType *
kept_array(FunctionCallInfo fcinfo, Datum datum)
{
	struct varlena *value = (struct varlena *) DatumGetPointer(datum);
	Kept	   *kept = fcinfo->flinfo->fn_extra;
	MemoryContext before;
	Size		size;

	if (VARATT_IS_4B_U(value))
		return (ArrayType *) value;
	size = VARSIZE_ANY(value);
	if (kept != NULL && kept->size == size && memcmp(kept->stored, value, size) == 0)
		return kept->array;
	before = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
	if (kept == NULL)
		kept = fcinfo->flinfo->fn_extra = palloc0(sizeof(Kept));
	else if (kept->size)
	{
		kept->size = 0;
		pfree(kept->stored);
		pfree(kept->array);
	}
	kept->stored = palloc(size);
	memcpy(kept->stored, value, size);
	kept->array = (ArrayType *) detoast_attr(value);
	kept->size = size;
	MemoryContextSwitchTo(before);
	return kept->array;
}

uint32
length_of(ArrayType *array)
{
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("features and weights are arrays of one dimension")));
	return ARR_NDIM(array) == 0 ? 0 : (uint32) ARR_DIMS(array)[0];
}

/* Gives the elements of an array of other numbers as those that can be computed with. */
static const void *
converted(ArrayType *array, uint32 count, Oid wanted)
{
	Oid			given = getBaseType(ARR_ELEMTYPE(array)),
				function;
	FmgrInfo	cast;
	Datum	   *items;
	int			item_count;
	int16		length;
	bool		byvalue;
	char		alignment;
	union
	{
		float		number;
		int32		index;
	}		   *found = palloc(sizeof(*found) * Max(count, 1));

	if (given == wanted)
		return ARR_DATA_PTR(array);
	if (given == FLOAT8OID && wanted == FLOAT4OID)
	{
		const double *from = (const double *) ARR_DATA_PTR(array);

		for (uint32 i = 0; i < count; i++)
			found[i].number = (float) from[i];
		return found;
	}
	if (TypeCategory(given) != TYPCATEGORY_NUMERIC ||
		find_coercion_pathway(wanted, given, COERCION_EXPLICIT, &function) != COERCION_PATH_FUNC)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("features are an array of %s, not of numbers", format_type_be(given))));
	fmgr_info(function, &cast);
	get_typlenbyvalalign(given, &length, &byvalue, &alignment);
	deconstruct_array(array, given, length, byvalue, alignment, &items, NULL, &item_count);
	for (uint32 i = 0; i < count; i++)
	{
		Datum		item = FunctionCall1(&cast, items[i]);

		if (wanted == FLOAT4OID)
			found[i].number = DatumGetFloat4(item);
		else
			found[i].index = DatumGetInt32(item);
	}
	return found;
}

/* Gives an array's elements, as float4 or int4; NULL where one of them is null. */
static inline const void *
read_array(Datum datum, Oid wanted, char *room, uint32 *count)
{
	ArrayType  *array = plain_array(datum, room);

	if (ARR_HASNULL(array) && array_contains_nulls(array))
		return NULL;
	*count = length_of(array);
	return ARR_ELEMTYPE(array) == wanted ? ARR_DATA_PTR(array) : converted(array, *count, wanted);
}

/* Gives an array's elements as float4; NULL where one of them is null. `room` has SHORT_MOST bytes. */
const float *
float_values(Datum array, char *room, uint32 *count)
{
	return read_array(array, FLOAT4OID, room, count);
}

/* Reads features from the arguments `first` and on; false where one is null. */
bool
read_row(FunctionCallInfo fcinfo, int first, Row *row)
{
	bool		sparse = PG_NARGS() - first == 2;
	uint32		index_count = 0;

	row->indices = NULL;
	if (sparse)
	{
		row->indices = read_array(PG_GETARG_DATUM(first++), INT4OID, row->rooms[0], &index_count);
		if (row->indices == NULL)
			return false;
	}
	row->values = read_array(PG_GETARG_DATUM(first), FLOAT4OID, row->rooms[1], &row->count);
	if (row->values == NULL)
		return false;
	if (sparse && index_count != row->count)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("a row has %u indices and %u values", index_count, row->count)));
	return true;
}
