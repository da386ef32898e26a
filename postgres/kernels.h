/*
 * kernels.h: SGD on rows that lie in memory of our own.
 *
 * Nothing here knows the server: these functions run in a thread beside the backend, which may call none of its
 * functions. A row is a run of 4-byte words. Dense: the label, then the features. Sparse: the label, the number of
 * entries, their indices (uint32), then their values. Where rows have weights, a row's own is its last word, above 0.
 */
#ifndef PENSTOCK_KERNELS_H
#define PENSTOCK_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum Loss
{
	LOSS_LOGISTIC,
	LOSS_HINGE,
	LOSS_SQUARED,
	LOSS_SOFTMAX
} Loss;

/* Where a row's own weight is, if it has one. */
static inline float *
row_end(float *row, bool sparse, uint32_t width)
{
	uint32_t	count;

	if (!sparse)
		return row + 1 + width;
	memcpy(&count, row + 1, sizeof(count));
	return row + 2 + 2 * (size_t) count;
}

static inline float
row_weight(const float *row, bool weighted, bool sparse, uint32_t width)
{
	return weighted ? *row_end((float *) row, sparse, width) : 1;
}

/* Sums over an epoch's rows, each as scored just before its own update; rows count by their weights, of mean 1. */
typedef struct Totals
{
	double		loss;
	double		grown;			/* product of (1 + e) terms whose logarithm the loss still lacks */
	double		hits;
	double		pivot;			/* the first label: a large mean then costs no digits of R² */
	double		shifted;		/* sums of (label - pivot) and of its square */
	double		shifted2;
	double		mass;			/* the rows' weights */
	uint64_t	rows;
} Totals;

typedef struct Learner
{
	Loss		loss;
	bool		sparse;
	bool		weighted;		/* rows have weights of their own */
	bool		intercept;
	uint32_t	outputs;		/* classes of softmax, else 1 */
	uint32_t	width;
	uint32_t	batch_size;
	double		l1;
	double		l2;
	double		base;			/* an update goes base / (1 + step) ** power far */
	double		power;
	const float *class_weights; /* what a row counts by its class; NULL: all alike */
	double		bound;			/* the loss's curvature, by which long rows shorten their update; 0: as it is */

	double		step;			/* updates so far */
	double		scale;			/* factor of all sparse weights: L2 is paid by it alone */
	double		owed;			/* L1 that all sparse weights owe; `seen` has what each has paid */

	float	   *w;				/* dense: outputs x width; sparse: width x outputs */
	float	   *b;				/* outputs */
	double	   *seen;			/* width; NULL unless sparse with L1 */
	float	   *gradient;		/* outputs x width; NULL unless dense with batches */
	float	   *pushes;			/* batch_size x outputs; NULL unless sparse with batches */
	float	   *scores;			/* outputs */
	float	   *sums;			/* outputs */
	Totals		totals;

	/* The mean of an epoch's snapshots of the weights, and that over the epochs, of which later ones count more. */
	float	   *mean_w;			/* as `w`; NULL where weights are not averaged */
	float	   *mean_b;
	float	   *epochs_w;
	float	   *epochs_b;
	uint64_t	epoch_rows;		/* as the survey counted them */
	uint64_t	snapshot_rows;	/* from one snapshot to the next */
	uint64_t	next_snapshot;	/* counted from 1 */
	uint32_t	taken;			/* in this epoch */
	uint32_t	averaged;		/* epochs that have ended */
} Learner;

#define LEARNT_ALL (-1)
#define LEARNT_STOPPED (-2)

/* What one pass over the rows as they are tells before the first epoch. */
typedef struct Survey
{
	Loss		loss;
	bool		sparse;
	bool		weighted;		/* all sums are by the rows' own weights */
	uint32_t	width;
	uint64_t	rows;
	double		mass;			/* the rows' weights */
	uint64_t	entries;		/* features that are stored, of all rows */
	double		label_sum;
	double	   *counts;			/* rows by class, where labels are classes */
	double	   *mean;			/* width, and the label; NULL where rows are sparse */
	double	   *square;			/* sums of squares, about the mean where rows are dense */
	double	   *present;		/* rows in which a feature is not 0; NULL where rows are dense */
	double	   *block;			/* room for two values a column */
	double	   *products;		/* lower triangle of all columns' products about their means; NULL unless it is asked for */
	double	   *columns;		/* room for SURVEY_ROWS values a column, beside `products` */
} Survey;

#define SURVEY_ROWS 64			/* dense rows that are taken in at once */

/* Adds what another survey of dense rows has summed up, with the products. */
extern void survey_merge(Survey *to, const Survey *from);

/* Takes rows in; returns LEARNT_ALL or LEARNT_STOPPED. */
extern int64_t survey_rows(Survey *survey, const float *words, const uint32_t *order, uint32_t rows,
						   const volatile bool *stop);

/*
 * Solves least squares by the products of a survey, for features that are centered (unless `center` is 0) and multiplied by
 * their factors; `penalty` is added to each feature's own product. Overwrites the products. Returns the sum of squared residuals.
 */
extern double solve_least_squares(Survey *survey, const float *center, const float *factor, double penalty, double bias,
								  float *w);

/* What L-BFGS works with. */
typedef struct Fit
{
	size_t		count;			/* weights and intercepts */
	uint32_t	most_passes;
	double		tolerance;		/* the steepest slope by any weight that counts as none */
	double	   *point;			/* five times `count`: where it is and would go, with the gradients; a direction */
	double	   *steps;			/* FIT_MEMORY times `count`, and so are `changes` of the gradient by each */
	double	   *changes;
	double	   *inverse;		/* FIT_MEMORY */
	double	   *scores;			/* outputs */
	uint32_t	passes;			/* over the rows */
	bool		converged;

	double		sum;			/* of the pass under way: losses, right answers, rows and their weights, without and with those of classes */
	double		hits;
	uint64_t	rows;
	double		mass;
	double		weight;

	double		loss;			/* where it is */
	double		best_hits;
	double		slope;			/* along the direction, and how far it is gone */
	double		length;
	int			halvings;
	uint32_t	kept;			/* of the last steps, and which is the newest */
	uint32_t	newest;
} Fit;

#define FIT_MEMORY 10			/* steps that L-BFGS learns the curvature from */

/*
 * L-BFGS: after fit_start, all rows are given to fit_add, which returns LEARNT_ALL or LEARNT_STOPPED, and fit_step says whether
 * they are to be given once more. When they are not, the learner has the weights, and its totals the rows that these are right in.
 */
extern void fit_start(const Learner *learner, Fit *fit);
extern int64_t fit_add(const Learner *learner, Fit *fit, const float *words, const uint32_t *order, uint32_t rows,
					   const volatile bool *stop);
extern bool fit_step(Learner *learner, Fit *fit);

/* Begins an epoch's snapshots; of the first epoch only the last half is averaged. At its end they are taken into the mean of all. */
extern void average_start(Learner *learner);
extern void average_end(Learner *learner);

/* Puts the mean over the epochs in the place of the weights. */
extern void average_take(Learner *learner);

/* Learns from rows in their order; returns LEARNT_ALL, LEARNT_STOPPED, or the row whose score was not finite. */
extern int64_t learn_rows(Learner *learner, const float *words, const uint32_t *order, uint32_t rows,
						  const volatile bool *stop);

/* The kernels it chooses from. */
extern int64_t learn_ahead(Learner *learner, const float *words, const uint32_t *order, uint32_t rows,
						   const volatile bool *stop);
extern int64_t learn_dense(Learner *learner, const float *words, const uint32_t *order, uint32_t rows,
						   const volatile bool *stop);
extern int64_t learn_sparse(Learner *learner, const float *words, const uint32_t *order, uint32_t rows,
							const volatile bool *stop);

/* Counts rows in the totals as the weights score them, and learns nothing; sparse weights have paid what they owe. */
extern void score_rows(Learner *learner, const float *words, const uint32_t *order, uint32_t rows);

/* Pays what lazily kept sparse weights owe. */
extern void learner_settle(Learner *learner);

extern void totals_start(Totals *totals);
extern double totals_loss(const Totals *totals);
extern double totals_score(const Totals *totals, Loss loss);

/* Shuffles in place; the same seed gives the same order. */
extern void shuffle_order(uint32_t *order, uint32_t count, uint64_t seed);
extern uint64_t mixed_seed(uint64_t seed, uint64_t epoch, uint64_t part);

extern bool all_finite(const float *values, uint32_t count);

/* Reordered sums for predictions. */
extern float dense_score(const float *w, const float *x, uint32_t count);

#if defined(__x86_64__) && defined(__GNUC__) && defined(__GLIBC__) && !defined(__clang__)
#define FOR_EACH_CPU __attribute__((target_clones("arch=haswell", "default")))
#else
#define FOR_EACH_CPU
#endif

#endif							/* PENSTOCK_KERNELS_H */
