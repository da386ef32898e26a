/*
 * encode.c: a row's columns as features, for the queries that penstock.train learns by.
 *
 * The recipe is a constant of the query, read at its first row.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"

#include "penstock.h"
#include "recipe.h"

PG_FUNCTION_INFO_V1(penstock_encode);
PG_FUNCTION_INFO_V1(penstock_encode_indices);
PG_FUNCTION_INFO_V1(penstock_encode_values);

/* Encodes the row that a function was given; features lie in the recipe then. NULL where a value is missing that nothing stands for. */
static const Recipe *
encoded(FunctionCallInfo fcinfo)
{
	Encoder    *encoder = fcinfo->flinfo->fn_extra;

	if (encoder == NULL)
	{
		if (!get_fn_expr_arg_stable(fcinfo->flinfo, 0))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("the recipe must be a constant")));
		encoder = encoder_make(fcinfo->flinfo->fn_mcxt, PG_GETARG_JSONB_P(0), false);
		fcinfo->flinfo->fn_extra = encoder;
	}
	return encoder_run(encoder, PG_GETARG_HEAPTUPLEHEADER(1)) ? encoder->recipe : NULL;
}

/* Makes an array of 4-byte numbers without nulls. */
static ArrayType *
make_array(uint32 count, Oid type)
{
	Size		size = ARR_OVERHEAD_NONULLS(1) + sizeof(float) * (Size) count;
	ArrayType  *array;

	if (count == 0)
		return construct_empty_array(type);
	array = palloc0(size);
	SET_VARSIZE(array, size);
	array->ndim = 1;
	array->elemtype = type;
	ARR_DIMS(array)[0] = count;
	ARR_LBOUND(array)[0] = 1;
	return array;
}

Datum
penstock_encode(PG_FUNCTION_ARGS)
{
	const Recipe *recipe = encoded(fcinfo);
	ArrayType  *array;
	float	   *to;

	if (recipe == NULL)
		PG_RETURN_NULL();
	array = make_array(recipe->width, FLOAT4OID);
	to = (float *) ARR_DATA_PTR(array);
	for (uint32 i = 0; i < recipe->count; i++)
		to[recipe->indices[i]] += recipe->values[i];
	PG_RETURN_ARRAYTYPE_P(array);
}

Datum
penstock_encode_indices(PG_FUNCTION_ARGS)
{
	const Recipe *recipe = encoded(fcinfo);
	ArrayType  *array;

	if (recipe == NULL)
		PG_RETURN_NULL();
	array = make_array(recipe->count, INT4OID);
	memcpy(ARR_DATA_PTR(array), recipe->indices, sizeof(int32) * recipe->count);
	PG_RETURN_ARRAYTYPE_P(array);
}

Datum
penstock_encode_values(PG_FUNCTION_ARGS)
{
	const Recipe *recipe = encoded(fcinfo);
	ArrayType  *array;

	if (recipe == NULL)
		PG_RETURN_NULL();
	array = make_array(recipe->count, FLOAT4OID);
	memcpy(ARR_DATA_PTR(array), recipe->values, sizeof(float) * recipe->count);
	PG_RETURN_ARRAYTYPE_P(array);
}
