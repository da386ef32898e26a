/*
 * kernels.c: the choice of kernel, and what needs no learner: inner products, checks, orders, totals.
 */
#include <math.h>

#include "kernels.h"

#define NARROW 160				/* up to this width scoring ahead is faster than waiting */

FOR_EACH_CPU float
dense_score(const float *w, const float *x, uint32_t count)
{
	float		sum = 0;

	for (uint32_t j = 0; j < count; j++)
		sum += w[j] * x[j];
	return sum;
}

/* A value that is not finite stays so when multiplied by zero, and spoils the sum. */
FOR_EACH_CPU bool
all_finite(const float *values, uint32_t count)
{
	float		sum = 0;

	for (uint32_t j = 0; j < count; j++)
		sum += values[j] * 0.0f;
	return sum == 0;
}

static inline uint64_t
next_random(uint64_t *state)
{
	uint64_t	z = (*state += UINT64_C(0x9E3779B97F4A7C15));

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

uint64_t
mixed_seed(uint64_t seed, uint64_t epoch, uint64_t part)
{
	uint64_t	state = seed;

	state = next_random(&state) ^ epoch;
	state = next_random(&state) ^ part;
	return next_random(&state);
}

void
shuffle_order(uint32_t *order, uint32_t count, uint64_t seed)
{
	uint64_t	state = seed;

	for (uint32_t i = count; i > 1; i--)
	{
		/* The high half of a product is even to within 2^-32, and costs no division. */
		uint32_t	j = (uint32_t) (((next_random(&state) >> 32) * (uint64_t) i) >> 32);
		uint32_t	kept = order[i - 1];

		order[i - 1] = order[j];
		order[j] = kept;
	}
}

void
totals_start(Totals *totals)
{
	*totals = (Totals) {.grown = 1};
}

double
totals_loss(const Totals *totals)
{
	return totals->rows ? (totals->loss + log(totals->grown)) / totals->rows : 0;
}

double
totals_score(const Totals *totals, Loss loss)
{
	double		spread,
				residual;

	if (totals->rows == 0)
		return 0;
	if (loss != LOSS_SQUARED)
		return totals->hits / totals->rows;
	spread = totals->shifted2 - totals->shifted * totals->shifted / totals->rows;
	residual = 2 * totals->loss;
	if (spread <= 0)
		return residual == 0 ? 1 : 0;
	return 1 - residual / spread;
}

int64_t
learn_rows(Learner *l, const float *words, const uint32_t *order, uint32_t rows, const volatile bool *stop)
{
	if (rows == 0)
		return LEARNT_ALL;
	if (l->totals.rows == 0)
		l->totals.pivot = words[order[0]];
	if (l->sparse)
		return learn_sparse(l, words, order, rows, stop);
	if (l->loss != LOSS_SOFTMAX && l->batch_size == 1 && l->l1 == 0 && l->width <= NARROW)
		return learn_ahead(l, words, order, rows, stop);
	return learn_dense(l, words, order, rows, stop);
}
