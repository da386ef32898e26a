/*
 * arrays.h: the arrays that predictions are made from.
 */
#ifndef PENSTOCK_ARRAYS_H
#define PENSTOCK_ARRAYS_H

#include "penstock.h"

/* A row's features: dense, or with the indices of a sparse row. */
typedef struct Row
{
	const float *values;
	const int32 *indices;
	uint32		count;
	char		rooms[2][SHORT_MOST] pg_attribute_aligned(8);
} Row;

extern ArrayType *kept_array(FunctionCallInfo fcinfo, Datum datum);
extern uint32 length_of(ArrayType *array);
extern const float *float_values(Datum array, char *room, uint32 *count);
extern bool read_row(FunctionCallInfo fcinfo, int first, Row *row);

#endif							/* PENSTOCK_ARRAYS_H */
