/*
 * weights.c: the weights of the thread as arrays of the server, in the units of the rows.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"

#include "penstock.h"

Datum
float_array(const float *from, Size count)
{
	Size		bytes = ARR_OVERHEAD_NONULLS(1) + count * sizeof(float);
	ArrayType  *array = palloc(bytes);

	SET_VARSIZE(array, bytes);
	array->ndim = 1;
	array->dataoffset = 0;
	array->elemtype = FLOAT4OID;
	ARR_DIMS(array)[0] = count;
	ARR_LBOUND(array)[0] = 1;
	memcpy(ARR_DATA_PTR(array), from, count * sizeof(float));
	return PointerGetDatum(array);
}

/* The weights by output and in the units of the rows, as the catalogue keeps them, whatever they are here. */
void
worker_weights(const Worker *worker, Size width, Datum *coef, Datum *intercept)
{
	const Learner *l = &worker->learner;
	Size		outputs = l->outputs;
	float	   *w = palloc_extended(width * outputs * sizeof(float), MCXT_ALLOC_HUGE),
			   *b = palloc(outputs * sizeof(float));

	for (Size c = 0; c < outputs; c++)
	{
		double		at_zero = l->b[c];

		for (Size j = 0; j < width; j++)
		{
			double		weight = l->w[l->sparse ? j * outputs + c : c * width + j];

			if (worker->factor)
				weight *= j < worker->factors ? worker->factor[j] : 0;
			if (worker->center)
				at_zero -= weight * worker->center[j];
			w[c * width + j] = (float) weight;
		}
		b[c] = (float) at_zero;
	}
	if (!all_finite(w, width * outputs) || !all_finite(b, outputs))
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("a weight is not a finite number"),
				 errhint("Use a smaller learning_rate, or leave it out.")));
	*coef = float_array(w, width * outputs);
	*intercept = float_array(b, outputs);
}
