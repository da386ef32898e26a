/*
 * survey.c: what one pass over the rows as they are tells before the first epoch: counts, means, spreads, products.
 *
 * Means and squares are merged block by block (Chan, Golub and LeVeque, 1979), so that a mean that is large beside the spread
 * costs no digits. Like the kernels, nothing here calls a function of the server.
 */
#include <math.h>
#include <string.h>

#include "kernels.h"

/* Adds the products of a block's columns, which are about their means, and of how far these are from the means so far. */
FOR_EACH_CPU static void
add_products(double *restrict products, const double *restrict columns, const double *restrict apart, size_t count, double share)
{
	for (size_t i = 0; i < count; i++)
	{
		const double *a = columns + i * SURVEY_ROWS;
		double		far = apart[i] * share;

		for (size_t j = 0; j <= i; j++)
		{
			const double *b = columns + j * SURVEY_ROWS;
			double		sum = 0;

			for (int k = 0; k < SURVEY_ROWS; k++)
				sum += a[k] * b[k];
			*products++ += sum + far * apart[j];
		}
	}
}

/* Takes in up to SURVEY_ROWS dense rows. The label is a column like any where products are asked for. */
FOR_EACH_CPU static void
add_dense(Survey *s, const float *words, const uint32_t *order, uint32_t rows)
{
	size_t		width = s->width;
	double	   *restrict mean = s->block,
			   *restrict square = s->block + width + 1;
	double		mass = 0,
				all,
				share;

	memset(s->block, 0, sizeof(double) * 2 * (width + 1));
	for (uint32_t k = 0; k < rows; k++)
	{
		const float *x = words + order[k] + 1;
		float		weight = s->weighted ? x[width] : 1;

		for (size_t j = 0; j < width; j++)
			mean[j] += weight * x[j];
		mean[width] += weight * x[-1];
		mass += weight;
	}
	for (size_t j = 0; j <= width; j++)
		mean[j] /= mass;
	all = s->mass + mass;
	share = s->mass * mass / all;
	if (s->columns)
		memset(s->columns, 0, sizeof(double) * (width + 1) * SURVEY_ROWS);
	for (uint32_t k = 0; k < rows; k++)
	{
		const float *x = words + order[k] + 1;
		float		weight = s->weighted ? x[width] : 1;
		double		root = s->columns ? sqrt(weight) : 0;

		for (size_t j = 0; j < width; j++)
		{
			double		apart = x[j] - mean[j];

			square[j] += weight * apart * apart;
		}
		square[width] += weight * (x[-1] - mean[width]) * (x[-1] - mean[width]);
		for (size_t j = 0; s->columns && j <= width; j++)
			s->columns[j * SURVEY_ROWS + k] = root * ((j < width ? x[j] : x[-1]) - mean[j]);
	}
	for (size_t j = 0; j <= width; j++)
	{
		mean[j] -= s->mean[j];
		s->square[j] += square[j] + mean[j] * mean[j] * share;
		s->mean[j] += mean[j] * mass / all;
	}
	if (s->products)
		add_products(s->products, s->columns, mean, width + 1, share);
	s->entries += rows * width;
}

static void
add_sparse(Survey *s, const float *row, float weight)
{
	uint32_t	count = *(const uint32_t *) (row + 1);
	const uint32_t *at = (const uint32_t *) (row + 2);
	const float *v = row + 2 + count;

	for (uint32_t e = 0; e < count; e++)
	{
		s->square[at[e]] += (double) weight * v[e] * v[e];
		s->present[at[e]] += v[e] != 0 ? weight : 0;
	}
	s->entries += count;
}

int64_t
survey_rows(Survey *s, const float *words, const uint32_t *order, uint32_t rows, const volatile bool *stop)
{
	for (uint32_t done = 0; done < rows; done += SURVEY_ROWS)
	{
		uint32_t	count = rows - done < SURVEY_ROWS ? rows - done : SURVEY_ROWS;

		if (*stop)
			return LEARNT_STOPPED;
		if (!s->sparse)
			add_dense(s, words, order + done, count);
		for (uint32_t i = done; i < done + count; i++)
		{
			const float *row = words + order[i];
			float		weight = row_weight(row, s->weighted, s->sparse, s->width);

			s->mass += weight;
			s->label_sum += (double) weight * row[0];
			if (s->loss == LOSS_SOFTMAX)
				s->counts[(uint32_t) row[0]] += weight;
			else if (s->loss != LOSS_SQUARED)
				s->counts[row[0] > 0] += weight;
			if (s->sparse)
				add_sparse(s, row, weight);
		}
		s->rows += count;
	}
	return LEARNT_ALL;
}

void
survey_merge(Survey *to, const Survey *from)
{
	double		all = to->mass + from->mass,
				share = all > 0 ? to->mass * from->mass / all : 0,
			   *apart = to->block;
	double	   *products = to->products;
	const double *others = from->products;

	if (from->rows == 0)
		return;
	for (size_t j = 0; j <= to->width; j++)
	{
		apart[j] = from->mean[j] - to->mean[j];
		to->square[j] += from->square[j] + apart[j] * apart[j] * share;
		to->mean[j] += apart[j] * from->mass / all;
	}
	for (size_t i = 0; i <= to->width; i++)
		for (size_t j = 0; j <= i; j++)
			*products++ += *others++ + apart[i] * apart[j] * share;
	to->rows += from->rows;
	to->mass = all;
	to->label_sum += from->label_sum;
	to->entries += from->entries;
}

FOR_EACH_CPU static double
product(const double *a, const double *b, size_t count)
{
	double		sum = 0;

	for (size_t k = 0; k < count; k++)
		sum += a[k] * b[k];
	return sum;
}

double
solve_least_squares(Survey *s, const float *center, const float *factor, double penalty, double bias, float *w)
{
	size_t		width = s->width;
	double	   *a = s->products,
			   *y = a + width * (width + 1) / 2,	/* the label's row: its products with the features, and with itself */
			   *solution = s->block,
			   *own = s->block + width + 1,
				off = s->mean[width] - bias,
				residual = y[width] + s->rows * off * off;

	/* Features as they will be learnt from: about `center` and times `factor`. */
	for (size_t i = 0; i <= width; i++)
	{
		double		from_i = i < width ? s->mean[i] - center[i] : off;

		for (size_t j = 0; j <= i && j < width; j++)
		{
			double	   *value = a + i * (i + 1) / 2 + j;

			*value = (*value + s->rows * from_i * (s->mean[j] - center[j])) * factor[j] * (i < width ? factor[i] : 1);
		}
	}
	/* Cholesky, row by row. A feature that others make up is left out: its weight is 0. */
	for (size_t i = 0; i < width; i++)
	{
		double	   *row = a + i * (i + 1) / 2;

		own[i] = row[i] + penalty;
		row[i] += penalty;
		for (size_t j = 0; j < i; j++)
		{
			const double *other = a + j * (j + 1) / 2;

			row[j] = other[j] > 0 ? (row[j] - product(row, other, j)) / other[j] : 0;
		}
		row[i] -= product(row, row, i);
		row[i] = row[i] > 1e-11 * own[i] ? sqrt(row[i]) : 0;
	}
	for (size_t i = 0; i < width; i++)
	{
		const double *row = a + i * (i + 1) / 2;

		solution[i] = row[i] > 0 ? (y[i] - product(row, solution, i)) / row[i] : 0;
		residual -= solution[i] * solution[i];
	}
	for (size_t i = width; i-- > 0;)
	{
		const double *row = a + i * (i + 1) / 2;

		solution[i] = row[i] > 0 ? solution[i] / row[i] : 0;
		for (size_t j = 0; j < i; j++)
			solution[j] -= row[j] * solution[i];
	}
	for (size_t i = 0; i < width; i++)
	{
		w[i] = (float) solution[i];
		residual -= penalty * solution[i] * solution[i];	/* what is left over beside the penalty */
	}
	return residual > 0 ? residual : 0;
}
