/*
 * kernels.c: the choice of kernel, and what needs no learner: inner products, checks, orders, totals.
 */
#include <math.h>
#include <string.h>

#include "row.h"

#define NARROW 160				/* up to this width scoring ahead is faster than waiting */

FOR_EACH_CPU float
dense_score(const float *w, const float *x, uint32_t count)
{
	float		sum = 0;

	for (uint32_t j = 0; j < count; j++)
		sum += w[j] * x[j];
	return sum;
}

/*
 * By the bits: an exponent of ones is no finite number. Arithmetic would not do here, where the compiler may reorder sums: it
 * made nothing of adding up values times zero.
 */
FOR_EACH_CPU bool
all_finite(const float *values, uint32_t count)
{
	uint32_t	largest = 0;

	for (uint32_t j = 0; j < count; j++)
	{
		uint32_t	bits;

		memcpy(&bits, &values[j], sizeof(bits));
		bits &= UINT32_C(0x7fffffff);
		largest = bits > largest ? bits : largest;
	}
	return largest < UINT32_C(0x7f800000);
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
	return totals->rows ? (totals->loss + log(totals->grown)) / totals->mass : 0;
}

double
totals_score(const Totals *totals, Loss loss)
{
	double		spread,
				residual;

	if (totals->rows == 0)
		return 0;
	if (loss != LOSS_SQUARED)
		return totals->hits / totals->mass;
	spread = totals->shifted2 - totals->shifted * totals->shifted / totals->mass;
	residual = 2 * totals->loss;
	if (spread <= 0)
		return residual == 0 ? 1 : 0;
	return 1 - residual / spread;
}

void
score_rows(Learner *l, const float *words, const uint32_t *order, uint32_t rows)
{
	totals_start(&l->totals);
	if (rows)
		l->totals.pivot = words[order[0]];
	for (uint32_t i = 0; i < rows; i++)
	{
		const float *row = words + order[i];

		for (uint32_t c = 0; c < l->outputs; c++)
			l->scores[c] = l->b[c] + (l->sparse ? 0 : dense_score(l->w + (size_t) c * l->width, row + 1, l->width));
		if (l->sparse)
		{
			uint32_t	count;

			memcpy(&count, row + 1, sizeof(count));
			for (uint32_t e = 0; e < count; e++)
			{
				uint32_t	index;

				memcpy(&index, row + 2 + e, sizeof(index));
				for (uint32_t c = 0; c < l->outputs && index < l->width; c++)	/* others were never learnt from */
					l->scores[c] += l->w[(size_t) index * l->outputs + c] * row[2 + count + e];
			}
		}
		slopes(l, l->loss, row[0], row_weight(row, l->weighted, l->sparse, l->width));	/* measures know no class weights */
	}
}

static int64_t
learn_run(Learner *l, const float *words, const uint32_t *order, uint32_t rows, const volatile bool *stop)
{
	if (l->sparse)
		return learn_sparse(l, words, order, rows, stop);
	if (l->loss != LOSS_SOFTMAX && l->batch_size == 1 && l->l1 == 0 && l->width <= NARROW)
		return learn_ahead(l, words, order, rows, stop);
	return learn_dense(l, words, order, rows, stop);
}

/* The number of an epoch's rows after which a snapshot is taken: a whole number of batches, or all rows. */
static uint64_t
snapshot_at(const Learner *l)
{
	uint64_t	due = l->snapshot_rows * l->next_snapshot,
				rows = (due + l->batch_size - 1) / l->batch_size * l->batch_size;

	return due <= l->epoch_rows && rows > l->epoch_rows ? l->epoch_rows : rows;
}

FOR_EACH_CPU static void
take_in(float *restrict mean, const float *restrict w, size_t count, float share)
{
	for (size_t j = 0; j < count; j++)
		mean[j] += share * (w[j] - mean[j]);
}

static void
take_snapshot(Learner *l)
{
	learner_settle(l);
	l->taken++;
	take_in(l->mean_w, l->w, (size_t) l->outputs * l->width, 1.0f / l->taken);
	take_in(l->mean_b, l->b, l->outputs, 1.0f / l->taken);
}

void
average_start(Learner *l)
{
	l->taken = 0;
	l->next_snapshot = 1;
	while (l->mean_w && l->averaged == 0 && snapshot_at(l) <= l->epoch_rows / 2)
		l->next_snapshot++;
}

void
average_end(Learner *l)
{
	size_t		weights = (size_t) l->outputs * l->width;

	if (l->mean_w == NULL)
		return;
	l->averaged++;
	take_in(l->epochs_w, l->taken ? l->mean_w : l->w, weights, 2.0f / (l->averaged + 1));
	take_in(l->epochs_b, l->taken ? l->mean_b : l->b, l->outputs, 2.0f / (l->averaged + 1));
}

void
average_take(Learner *l)
{
	if (l->mean_w == NULL)
		return;
	memcpy(l->w, l->epochs_w, sizeof(float) * l->outputs * l->width);
	memcpy(l->b, l->epochs_b, sizeof(float) * l->outputs);
}

int64_t
learn_rows(Learner *l, const float *words, const uint32_t *order, uint32_t rows, const volatile bool *stop)
{
	uint32_t	done = 0;

	if (rows && l->totals.rows == 0)
		l->totals.pivot = words[order[0]];
	while (done < rows)
	{
		uint32_t	count = rows - done;
		int64_t		result;

		if (l->mean_w && snapshot_at(l) - l->totals.rows < count)
			count = (uint32_t) (snapshot_at(l) - l->totals.rows);
		result = learn_run(l, words, order + done, count, stop);
		if (result != LEARNT_ALL)
			return result >= 0 ? result + done : result;
		done += count;
		if (l->mean_w && l->totals.rows >= snapshot_at(l))
		{
			take_snapshot(l);
			while (snapshot_at(l) <= l->totals.rows)
				l->next_snapshot++;
		}
	}
	return LEARNT_ALL;
}
