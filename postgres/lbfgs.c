/*
 * lbfgs.c: the best weights by L-BFGS (Nocedal, 1980), a step for each pass over all rows.
 *
 * The loss of logistic and softmax models with an L2 penalty has one minimum. A pass adds up the loss and its gradient window by
 * window (fit_add), in whatever order they come; between passes fit_step says where to look next. Like the kernels, nothing here
 * calls a function of the server.
 */
#include <math.h>
#include <string.h>

#include "kernels.h"

#define MEMORY FIT_MEMORY
#define HALVINGS 30				/* of a step, until the loss counts as being as low as it gets */

FOR_EACH_CPU static double
inner(const double *a, const double *b, size_t count)
{
	double		sum = 0;

	for (size_t k = 0; k < count; k++)
		sum += a[k] * b[k];
	return sum;
}

FOR_EACH_CPU static void
add(double *restrict to, const double *restrict from, double times, size_t count)
{
	for (size_t k = 0; k < count; k++)
		to[k] += times * from[k];
}

FOR_EACH_CPU static double
score_row(const double *restrict w, const float *restrict x, uint32_t width)
{
	double		sum = 0;

	for (uint32_t j = 0; j < width; j++)
		sum += w[j] * x[j];
	return sum;
}

FOR_EACH_CPU static void
add_row(double *restrict to, const float *restrict x, double times, uint32_t width)
{
	for (uint32_t j = 0; j < width; j++)
		to[j] += times * x[j];
}

/* What a row counts by its class. */
static double
class_weight(const Learner *l, float label)
{
	if (l->class_weights == NULL)
		return 1;
	return l->class_weights[l->loss == LOSS_SOFTMAX ? (uint32_t) label : label > 0];
}

/* Turns the scores of a row into slopes; returns its loss. */
static double
row_loss(const Learner *l, double *scores, float label)
{
	uint32_t	best = 0;
	double		sum = 0,
				loss;

	if (l->loss == LOSS_LOGISTIC)
	{
		double		margin = scores[0] * label,
					e = exp(-fabs(margin));

		scores[0] = -label * (margin > 0 ? e : 1) / (1 + e);
		return (margin < 0 ? -margin : 0) + log1p(e);
	}
	for (uint32_t c = 1; c < l->outputs; c++)
		if (scores[c] > scores[best])
			best = c;
	loss = scores[best] - scores[(uint32_t) label];
	for (uint32_t c = l->outputs; c-- > 0;)
		if (c != best)
			sum += scores[c] = exp(scores[c] - scores[best]);
	scores[best] = 1;
	sum += 1;
	for (uint32_t c = 0; c < l->outputs; c++)
		scores[c] /= sum;
	scores[(uint32_t) label] -= 1;
	return loss + log(sum);
}

/* A row's scores at `p`, the weights by output and then the intercepts. */
static void
score_at(const Learner *l, const double *p, const float *row, double *scores)
{
	size_t		width = l->width;
	const double *b = p + width * l->outputs;
	uint32_t	count;

	for (uint32_t c = 0; c < l->outputs; c++)
		scores[c] = b[c] + (l->sparse ? 0 : score_row(p + c * width, row + 1, l->width));
	if (!l->sparse)
		return;
	memcpy(&count, row + 1, sizeof(count));
	for (uint32_t e = 0; e < count; e++)
	{
		uint32_t	index;

		memcpy(&index, row + 2 + e, sizeof(index));
		for (uint32_t c = 0; c < l->outputs; c++)
			scores[c] += p[c * width + index] * row[2 + count + e];
	}
}

/* Adds a row's features, times the slope of each output, to a gradient. */
static void
add_slopes(const Learner *l, double *gradient, const float *row, const double *slopes)
{
	size_t		width = l->width;
	uint32_t	count;

	for (uint32_t c = 0; c < l->outputs && l->intercept; c++)
		gradient[width * l->outputs + c] += slopes[c];
	for (uint32_t c = 0; c < l->outputs && !l->sparse; c++)
		add_row(gradient + c * width, row + 1, slopes[c], l->width);
	if (!l->sparse)
		return;
	memcpy(&count, row + 1, sizeof(count));
	for (uint32_t e = 0; e < count; e++)
	{
		uint32_t	index;

		memcpy(&index, row + 2 + e, sizeof(index));
		for (uint32_t c = 0; c < l->outputs; c++)
			gradient[c * width + index] += slopes[c] * row[2 + count + e];
	}
}

/* Whether the scores of a row say its label. */
static bool
is_hit(const Learner *l, const double *scores, float label)
{
	uint32_t	best = 0;

	if (l->loss == LOSS_LOGISTIC)
		return (scores[0] > 0) == (label > 0);
	for (uint32_t c = 1; c < l->outputs; c++)
		if (scores[c] > scores[best])
			best = c;
	return best == (uint32_t) label;
}

/* Where the parts of `point` are: where it is and would go, with the gradients there, and a direction. */
#define HERE(fit) ((fit)->point)
#define SLOPES(fit) ((fit)->point + (fit)->count)
#define NEXT(fit) ((fit)->point + 2 * (fit)->count)
#define NEXT_SLOPES(fit) ((fit)->point + 3 * (fit)->count)
#define DIRECTION(fit) ((fit)->point + 4 * (fit)->count)

int64_t
fit_add(const Learner *l, Fit *fit, const float *words, const uint32_t *order, uint32_t rows, const volatile bool *stop)
{
	for (uint32_t i = 0; i < rows; i++)
	{
		const float *row = words + order[i];
		double		own = row_weight(row, l->weighted, l->sparse, l->width),
					weight = own * class_weight(l, row[0]);

		if (*stop)
			return LEARNT_STOPPED;
		score_at(l, NEXT(fit), row, fit->scores);
		fit->hits += own * is_hit(l, fit->scores, row[0]);
		fit->mass += own;
		fit->weight += weight;
		fit->sum += weight * row_loss(l, fit->scores, row[0]);
		for (uint32_t c = 0; c < l->outputs; c++)
			fit->scores[c] *= weight;
		add_slopes(l, NEXT_SLOPES(fit), row, fit->scores);
	}
	fit->rows += rows;
	return LEARNT_ALL;
}

/* Multiplies a gradient by the inverse curvature that the last steps have shown; the two-loop recursion. */
static void
choose_direction(const Fit *fit, uint32_t kept, uint32_t newest, double *direction)
{
	size_t		count = fit->count;
	double		share[MEMORY];

	for (uint32_t k = 0; k < kept; k++)
	{
		uint32_t	i = (newest + MEMORY - k) % MEMORY;

		share[i] = fit->inverse[i] * inner(fit->steps + i * count, direction, count);
		add(direction, fit->changes + i * count, -share[i], count);
	}
	if (kept)
	{
		const double *change = fit->changes + newest * count;
		double		scale = 1 / (fit->inverse[newest] * inner(change, change, count));

		for (size_t k = 0; k < count; k++)
			direction[k] *= scale;
	}
	for (uint32_t k = kept; k-- > 0;)
	{
		uint32_t	i = (newest + MEMORY - k) % MEMORY;

		add(direction, fit->steps + i * count, share[i] - fit->inverse[i] * inner(fit->changes + i * count, direction, count),
			count);
	}
	for (size_t k = 0; k < count; k++)
		direction[k] = -direction[k];
}

static bool
is_flat(const Fit *fit, const double *gradient)
{
	double		steepest = 0;

	for (size_t k = 0; k < fit->count; k++)
		steepest = fabs(gradient[k]) > steepest ? fabs(gradient[k]) : steepest;
	return steepest <= fit->tolerance;
}

/* Has the next pass look `length` along the direction. */
static bool
look(Fit *fit)
{
	memcpy(NEXT(fit), HERE(fit), sizeof(double) * fit->count);
	add(NEXT(fit), DIRECTION(fit), fit->length, fit->count);
	memset(NEXT_SLOPES(fit), 0, sizeof(double) * fit->count);
	fit->sum = fit->hits = fit->mass = fit->weight = 0;
	fit->rows = 0;
	return true;
}

void
fit_start(const Learner *l, Fit *fit)
{
	size_t		weights = (size_t) l->width * l->outputs;

	for (size_t k = 0; k < weights; k++)
		HERE(fit)[k] = l->sparse ? l->w[k % l->width * l->outputs + k / l->width] : l->w[k];
	for (uint32_t c = 0; c < l->outputs; c++)
		HERE(fit)[weights + c] = l->b[c];
	fit->passes = fit->kept = 0;
	fit->newest = MEMORY - 1;
	look(fit);
}

/* Puts the weights found into the learner, with what is known of them in its totals. */
static bool
settle(Learner *l, Fit *fit)
{
	size_t		weights = (size_t) l->width * l->outputs;

	for (size_t k = 0; k < weights; k++)
		l->w[l->sparse ? k % l->width * l->outputs + k / l->width : k] = (float) HERE(fit)[k];
	for (uint32_t c = 0; c < l->outputs; c++)
		l->b[c] = (float) HERE(fit)[weights + c];
	totals_start(&l->totals);
	l->totals.rows = fit->rows;
	l->totals.mass = fit->mass;
	l->totals.hits = fit->best_hits;
	return false;
}

/* Takes the point that was looked at for the one to go on from. */
static void
move(Fit *fit, double loss)
{
	size_t		count = fit->count;
	uint32_t	newest = (fit->newest + 1) % MEMORY;
	double	   *step = fit->steps + newest * count,
			   *change = fit->changes + newest * count,
				curved;

	for (size_t k = 0; k < count && fit->passes > 1; k++)
	{
		step[k] = NEXT(fit)[k] - HERE(fit)[k];
		change[k] = NEXT_SLOPES(fit)[k] - SLOPES(fit)[k];
	}
	curved = inner(step, change, count);
	if (fit->passes > 1 && curved > 1e-12 * inner(change, change, count))
	{
		fit->inverse[newest] = 1 / curved;
		fit->newest = newest;
		fit->kept = fit->kept < MEMORY ? fit->kept + 1 : MEMORY;
	}
	memcpy(HERE(fit), NEXT(fit), sizeof(double) * count);
	memcpy(SLOPES(fit), NEXT_SLOPES(fit), sizeof(double) * count);
	fit->loss = loss;
	fit->best_hits = fit->hits;
}

bool
fit_step(Learner *l, Fit *fit)
{
	size_t		count = fit->count,
				weights = (size_t) l->width * l->outputs;
	double		loss = fit->sum / fit->weight + l->l2 / 2 * inner(NEXT(fit), NEXT(fit), weights);

	for (size_t k = 0; k < count; k++)
		NEXT_SLOPES(fit)[k] /= fit->weight;
	add(NEXT_SLOPES(fit), NEXT(fit), l->l2, weights);
	if (fit->passes++ > 0)
	{
		if (!(loss <= fit->loss + 1e-4 * fit->length * fit->slope) && ++fit->halvings <= HALVINGS &&
			fit->passes < fit->most_passes)
		{
			fit->length /= 2;
			return look(fit);
		}
		if (!(loss <= fit->loss))	/* no step is better: this is the minimum, to the digits there are */
		{
			fit->converged = fit->halvings > HALVINGS;
			return settle(l, fit);
		}
	}
	move(fit, loss);
	if ((fit->converged = is_flat(fit, SLOPES(fit))) || fit->passes >= fit->most_passes)
		return settle(l, fit);
	for (;;)
	{
		memcpy(DIRECTION(fit), SLOPES(fit), sizeof(double) * count);
		choose_direction(fit, fit->kept, fit->newest, DIRECTION(fit));
		fit->slope = inner(DIRECTION(fit), SLOPES(fit), count);
		if (fit->slope < 0)
			break;
		if (fit->kept == 0)
			return settle(l, fit);
		fit->kept = 0;			/* rounding has spoilt what was kept */
	}
	fit->length = fit->kept ? 1 : 1 / sqrt(-fit->slope);
	fit->length = fit->length < 1 ? fit->length : 1;
	fit->halvings = 0;
	return look(fit);
}
