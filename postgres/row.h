/*
 * row.h: the arithmetic that all kernels share, for one row at a time.
 *
 * It is that of Penstock's compiled kernels in Python (sgd/scalar.py): float32 weights, statistics in float64, each row
 * counted as scored just before its update.
 */
#ifndef PENSTOCK_ROW_H
#define PENSTOCK_ROW_H

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))
#define HUGE_PRODUCT 1e300
#define AHEAD 8					/* rows fetched into the cache before they are needed */

INLINE float
softly(float value, float threshold)
{
	float		above = value - threshold,
				below = value + threshold;

	return (above > 0 ? above : 0) + (below < 0 ? below : 0);
}

INLINE double
rate_at(const Learner *l)
{
	return l->power == 0 ? l->base : l->base * pow(1 + l->step, -l->power);
}

/*
 * A learning rate shortened for a row of squared length `size`: the first-order form of the implicit update. However large the
 * rate, the row's own loss does not rise.
 */
INLINE double
bounded_rate(const Learner *l, double rate, float size)
{
	return l->bound > 0 ? rate / (1 + rate * l->bound * (double) size) : rate;
}

INLINE bool
usable(float score, float y)
{
	return fabsf(score + y) <= FLT_MAX;
}

INLINE void
fetch_row(const float *words, const uint32_t *order, uint32_t i, uint32_t rows)
{
	if (i < rows)
	{
		const char *row = (const char *) (words + order[i]);

		__builtin_prefetch(row);
		__builtin_prefetch(row + 64);
		__builtin_prefetch(row + 128);
	}
}

/* What a row of that label counts; its own weight is the word at `own`, if it has one. */
INLINE float
weight_of(const Learner *l, Loss loss, float y, const float *own)
{
	float		weight = l->weighted ? *own : 1;

	if (l->class_weights == NULL)
		return weight;
	return weight * l->class_weights[loss == LOSS_SOFTMAX ? (uint32_t) y : y > 0];
}

/* Counts a row of one score by its weight, and returns the loss's slope there, times the weight. */
INLINE float
pull(Totals *t, Loss loss, float score, float y, float weight)
{
	t->rows++;
	t->mass += weight;
	if (loss == LOSS_LOGISTIC)
	{
		float		margin = score * y,
					e = expf(-fabsf(margin)),
					share = 1 / (1 + e);

		t->loss += margin < 0 ? -margin * weight : 0;
		/* One logarithm for hundreds of rows: that of a product is the sum of the logarithms. */
		if (weight == 1)
			t->grown *= 1.0 + e;
		else
			t->loss += weight * log1p((double) e);
		if (t->grown > HUGE_PRODUCT)
		{
			t->loss += log(t->grown);
			t->grown = 1;
		}
		t->hits += (score > 0) == (y > 0) ? weight : 0;
		return -y * weight * (margin > 0 ? e * share : share);
	}
	if (loss == LOSS_HINGE)
	{
		float		gap = 1 - score * y;

		t->hits += (score > 0) == (y > 0) ? weight : 0;
		if (gap > 0)
		{
			t->loss += gap * weight;
			return -y * weight;
		}
		return 0;
	}
	else
	{
		float		residual = score - y;
		double		apart = (double) y - t->pivot;

		t->loss += 0.5 * weight * (double) residual * (double) residual;
		t->shifted += weight * apart;
		t->shifted2 += weight * apart * apart;
		return weight * residual;
	}
}

/* Turns the scores of a row's classes into slopes, and counts the row, both by its weight. */
INLINE bool
pull_classes(Learner *l, float y, float weight)
{
	uint32_t	best = 0,
				label = (uint32_t) y;
	float		sum = 0,
				top;

	for (uint32_t c = 0; c < l->outputs; c++)
	{
		if (!usable(l->scores[c], 0))
			return false;
		if (l->scores[c] > l->scores[best])
			best = c;
	}
	top = l->scores[best];
	l->totals.rows++;
	l->totals.mass += weight;
	l->totals.hits += best == label ? weight : 0;
	l->totals.loss -= (double) weight * (double) (l->scores[label] - top);
	for (uint32_t c = 0; c < l->outputs; c++)
	{
		l->scores[c] = expf(l->scores[c] - top);
		sum += l->scores[c];
	}
	l->totals.loss += weight * log((double) sum);
	for (uint32_t c = 0; c < l->outputs; c++)
		l->scores[c] = weight * (l->scores[c] / sum - (c == label));
	return true;
}

/* Leaves the slopes, times the row's weight, in l->scores; false where a score is not finite. */
INLINE bool
slopes(Learner *l, Loss loss, float y, float weight)
{
	if (loss == LOSS_SOFTMAX)
		return pull_classes(l, y, weight);
	if (!usable(l->scores[0], y))
		return false;
	l->scores[0] = pull(&l->totals, loss, l->scores[0], y, weight);
	return true;
}

/* The loss is a constant to each kernel, so that no row asks for it. */
#define BY_LOSS(kernel) \
	switch (l->loss) \
	{ \
		case LOSS_LOGISTIC: \
			return kernel(l, LOSS_LOGISTIC, words, order, rows, stop); \
		case LOSS_HINGE: \
			return kernel(l, LOSS_HINGE, words, order, rows, stop); \
		case LOSS_SQUARED: \
			return kernel(l, LOSS_SQUARED, words, order, rows, stop); \
		default: \
			return kernel(l, LOSS_SOFTMAX, words, order, rows, stop); \
	}

#endif							/* PENSTOCK_ROW_H */
