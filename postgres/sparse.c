/*
 * sparse.c: one pass of SGD over sparse rows.
 *
 * A row's update touches the row's own features alone. L2 shrinks one factor common to all weights; L1 adds to one sum
 * owed by all, and a weight pays what has come due when it is next seen. Both are exact.
 */
#include "row.h"

#define SMALL_SCALE 1e-6		/* below it float32 weights would lose digits to the common factor */

/* One entry of sparse weights pays the L1 that has come due since it was last seen. */
INLINE void
pay(Learner *l, uint32_t outputs, const uint32_t *at, uint32_t n)
{
	for (uint32_t e = 0; e < n; e++)
	{
		float		debt = (float) (l->owed - l->seen[at[e]]);

		for (uint32_t c = 0; c < outputs; c++)
			l->w[(size_t) at[e] * outputs + c] = softly(l->w[(size_t) at[e] * outputs + c], debt);
		l->seen[at[e]] = l->owed;
	}
}

INLINE void
push_row(Learner *l, uint32_t outputs, const float *row, const float *slope, float share)
{
	uint32_t	n = *(const uint32_t *) (row + 1);
	const uint32_t *at = (const uint32_t *) (row + 2);
	const float *v = row + 2 + n;

	for (uint32_t c = 0; c < outputs; c++)
	{
		float		push = share * slope[c];

		if (push != 0)
			for (uint32_t e = 0; e < n; e++)
				l->w[(size_t) at[e] * outputs + c] -= push * v[e];
	}
}

INLINE int64_t
sparse_any(Learner *l, Loss loss, const float *words, const uint32_t *order, uint32_t rows, const volatile bool *stop)
{
	const uint32_t outputs = loss == LOSS_SOFTMAX ? l->outputs : 1;
	uint32_t	taken = 0;
	float		size = 0;

	for (uint32_t i = 0; i < rows; i++)
	{
		const float *row = words + order[i];
		uint32_t	n = *(const uint32_t *) (row + 1);
		const uint32_t *at = (const uint32_t *) (row + 2);
		const float *v = row + 2 + n;
		float		scale = (float) l->scale,
					weight = weight_of(l, loss, row[0], v + n),
					length = l->intercept ? 1 : 0;

		if (*stop)
			return LEARNT_STOPPED;
		fetch_row(words, order, i + AHEAD, rows);
		if (i + AHEAD / 2 < rows)	/* by now its length is here, and what lies past the lines fetched can be asked for */
		{
			const float *soon = words + order[i + AHEAD / 2];
			const char *end = (const char *) (soon + 2 + 2 * (size_t) *(const uint32_t *) (soon + 1));

			for (const char *line = (const char *) soon + 192; line < end; line += 64)
				__builtin_prefetch(line);
		}
		if (i + 2 < rows && outputs == 1)	/* then its weights, the slowest of all */
		{
			const float *soon = words + order[i + 2];
			uint32_t	count = *(const uint32_t *) (soon + 1);

			for (uint32_t e = 0; e < count; e++)
				__builtin_prefetch(l->w + ((const uint32_t *) (soon + 2))[e], 1);
		}
		if (l->l1 > 0)
			pay(l, outputs, at, n);
		for (uint32_t c = 0; c < outputs; c++)
		{
			float		dot = 0;

			for (uint32_t e = 0; e < n; e++)
				dot += l->w[(size_t) at[e] * outputs + c] * v[e];
			l->scores[c] = l->b[c] + scale * dot;
		}
		if (!slopes(l, loss, row[0], weight))
			return i;
		if (l->batch_size > 1)
		{
			for (uint32_t c = 0; c < outputs; c++)
			{
				l->pushes[(size_t) taken * outputs + c] = l->scores[c];
				l->sums[c] += l->scores[c];
			}
		}
		taken++;
		if (l->bound > 0)
		{
			for (uint32_t e = 0; e < n; e++)
				length += v[e] * v[e];
			size += weight * length;
		}
		if (taken < l->batch_size && i + 1 < rows)
			continue;
		{
			double		rate = rate_at(l),
						bounded = bounded_rate(l, rate, size / taken);
			float		share = (float) (bounded / taken);

			for (uint32_t c = 0; c < outputs && l->intercept; c++)
				l->b[c] -= share * (l->batch_size > 1 ? l->sums[c] : l->scores[c]);
			l->step += 1;
			if (l->l2 > 0)
			{
				l->scale *= 1 - rate * l->l2 > 0 ? 1 - rate * l->l2 : 0;
				if (l->scale < SMALL_SCALE)
					learner_settle(l);
			}
			share = (float) (bounded / taken / l->scale);
			if (l->batch_size == 1)
				push_row(l, outputs, row, l->scores, share);
			else
			{
				for (uint32_t k = 0; k < taken; k++)
					push_row(l, outputs, words + order[i + 1 - taken + k], l->pushes + (size_t) k * outputs, share);
				memset(l->sums, 0, sizeof(float) * outputs);
			}
			if (l->l1 > 0)
				l->owed += rate * l->l1 / l->scale;
			taken = 0;
			size = 0;
		}
	}
	return LEARNT_ALL;
}

void
learner_settle(Learner *l)
{
	float		scale = (float) l->scale;

	if (!l->sparse || (l->scale == 1 && l->owed == 0))
		return;
	for (size_t j = 0; j < l->width; j++)
	{
		float		debt = l->seen ? (float) (l->owed - l->seen[j]) : 0;

		for (size_t c = 0; c < l->outputs; c++)
			l->w[j * l->outputs + c] = scale * softly(l->w[j * l->outputs + c], debt);
		if (l->seen)
			l->seen[j] = 0;
	}
	l->scale = 1;
	l->owed = 0;
}

FOR_EACH_CPU int64_t
learn_sparse(Learner *l, const float *words, const uint32_t *order, uint32_t rows, const volatile bool *stop)
{
	BY_LOSS(sparse_any)
}
