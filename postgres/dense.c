/*
 * dense.c: one pass of SGD over dense rows.
 *
 * `dense_ahead` hides the wait for the exponential: a row is scored on the weights before the last update, and corrected
 * by the two rows' inner product. `dense_any` knows every loss, batch size and penalty.
 */
#include "row.h"

INLINE int64_t
dense_ahead(Learner *l, Loss loss, const float *words, const uint32_t *order, uint32_t rows, const volatile bool *stop)
{
	float	   *restrict w = l->w;
	const uint32_t width = l->width;
	const float *last = words + order[0] + 1;
	float		push = 0,
				keep = 1,
				dot = 0,
				gram = 0,
				free = l->intercept ? 1 : 0,
				size = 0,
				next_size = free,
				bias = l->b[0];
	Totals		t = l->totals;

	for (uint32_t j = 0; j < width; j++)
	{
		dot += w[j] * last[j];
		next_size += last[j] * last[j];
	}
	for (uint32_t i = 0; i < rows; i++)
	{
		const float *x = words + order[i] + 1;
		const float *next = words + order[i + 1 < rows ? i + 1 : i] + 1;
		float		score = bias + keep * dot - push * gram;
		float		weight = weight_of(l, loss, x[-1], x + width);
		double		rate;

		if (*stop)
			return LEARNT_STOPPED;
		if (!usable(score, x[-1]))
			return i;
		fetch_row(words, order, i + AHEAD, rows);
		dot = 0;
		gram = 0;
		size = next_size;
		next_size = free;
		/* The weights still lack the last row's update. */
		for (uint32_t j = 0; j < width; j++)
		{
			float		v = keep * w[j] - push * last[j];

			w[j] = v;
			dot += v * next[j];
			gram += x[j] * next[j];
			next_size += next[j] * next[j];
		}
		rate = rate_at(l);
		push = (float) bounded_rate(l, rate, weight * size) * pull(&t, loss, score, x[-1], weight);
		keep = (float) (1 - rate * l->l2 > 0 ? 1 - rate * l->l2 : 0);
		if (l->intercept)
			bias -= push;
		l->step += 1;
		last = x;
	}
	for (uint32_t j = 0; j < width; j++)
		w[j] = keep * w[j] - push * last[j];
	l->b[0] = bias;
	l->totals = t;
	return LEARNT_ALL;
}

INLINE int64_t
dense_any(Learner *l, Loss loss, const float *words, const uint32_t *order, uint32_t rows, const volatile bool *stop)
{
	const uint32_t width = l->width,
				outputs = loss == LOSS_SOFTMAX ? l->outputs : 1;
	uint32_t	taken = 0;
	float		size = 0;

	for (uint32_t i = 0; i < rows; i++)
	{
		const float *x = words + order[i] + 1;
		float		weight = weight_of(l, loss, x[-1], x + width),
					length = l->intercept ? 1 : 0;

		if (*stop)
			return LEARNT_STOPPED;
		fetch_row(words, order, i + AHEAD, rows);
		for (uint32_t c = 0; c < outputs; c++)
		{
			const float *w = l->w + (size_t) c * width;
			float		score = l->b[c];

			for (uint32_t j = 0; j < width; j++)
				score += w[j] * x[j];
			l->scores[c] = score;
		}
		if (!slopes(l, loss, x[-1], weight))
			return i;
		taken++;
		if (l->bound > 0)
		{
			for (uint32_t j = 0; j < width; j++)
				length += x[j] * x[j];
			size += weight * length;
		}
		if (l->batch_size > 1)
		{
			for (uint32_t c = 0; c < outputs; c++)
			{
				float	   *gradient = l->gradient + (size_t) c * width;
				float		slope = l->scores[c];

				l->sums[c] += slope;
				if (slope != 0)
					for (uint32_t j = 0; j < width; j++)
						gradient[j] += slope * x[j];
			}
			if (taken < l->batch_size && i + 1 < rows)
				continue;
		}
		{
			double		rate = rate_at(l);
			float		share = (float) (bounded_rate(l, rate, size / taken) / taken),
						keep = (float) (1 - rate * l->l2 > 0 ? 1 - rate * l->l2 : 0),
						threshold = (float) (rate * l->l1);

			for (uint32_t c = 0; c < outputs; c++)
			{
				float	   *restrict w = l->w + (size_t) c * width;
				float	   *gradient = l->batch_size > 1 ? l->gradient + (size_t) c * width : NULL;
				const float *from = gradient ? gradient : x;
				float		push = gradient ? share : share * l->scores[c];

				if (threshold > 0)
					for (uint32_t j = 0; j < width; j++)
						w[j] = softly(keep * w[j] - push * from[j], threshold);
				else if (push != 0 || keep != 1)	/* the hinge loss asks nothing of rows well on their side */
					for (uint32_t j = 0; j < width; j++)
						w[j] = keep * w[j] - push * from[j];
				if (l->intercept)
					l->b[c] -= gradient ? share * l->sums[c] : push;
				if (gradient)
				{
					memset(gradient, 0, sizeof(float) * width);
					l->sums[c] = 0;
				}
			}
			l->step += 1;
			taken = 0;
			size = 0;
		}
	}
	return LEARNT_ALL;
}

FOR_EACH_CPU int64_t
learn_ahead(Learner *l, const float *words, const uint32_t *order, uint32_t rows, const volatile bool *stop)
{
	switch (l->loss)
	{
		case LOSS_LOGISTIC:
			return dense_ahead(l, LOSS_LOGISTIC, words, order, rows, stop);
		case LOSS_HINGE:
			return dense_ahead(l, LOSS_HINGE, words, order, rows, stop);
		default:
			return dense_ahead(l, LOSS_SQUARED, words, order, rows, stop);
	}
}

FOR_EACH_CPU int64_t
learn_dense(Learner *l, const float *words, const uint32_t *order, uint32_t rows, const volatile bool *stop)
{
	BY_LOSS(dense_any)
}
