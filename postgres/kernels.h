/*
 * kernels.h: SGD on rows that lie in memory of our own.
 *
 * Nothing here knows the server: these functions run in a thread beside the backend, which may call none of its
 * functions. A row is a run of 4-byte words. Dense: the label, then the features. Sparse: the label, the number of
 * entries, their indices (uint32), then their values.
 */
#ifndef PENSTOCK_KERNELS_H
#define PENSTOCK_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum Loss
{
	LOSS_LOGISTIC,
	LOSS_HINGE,
	LOSS_SQUARED,
	LOSS_SOFTMAX
} Loss;

/* Sums over an epoch's rows, each as scored just before its own update. */
typedef struct Totals
{
	double		loss;
	double		grown;			/* product of (1 + e) terms whose logarithm the loss still lacks */
	double		hits;
	double		pivot;			/* the first label: a large mean then costs no digits of R² */
	double		shifted;		/* sums of (label - pivot) and of its square */
	double		shifted2;
	uint64_t	rows;
} Totals;

typedef struct Learner
{
	Loss		loss;
	bool		sparse;
	bool		intercept;
	uint32_t	outputs;		/* classes of softmax, else 1 */
	uint32_t	width;
	uint32_t	batch_size;
	double		l1;
	double		l2;
	double		base;			/* an update goes base / (1 + step) ** power far */
	double		power;

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
} Learner;

#define LEARNT_ALL (-1)
#define LEARNT_STOPPED (-2)

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
