/*
 * penstock.h: what the extension's files share: options, windows of packed rows, and the three nodes of a plan.
 */
#ifndef PENSTOCK_H
#define PENSTOCK_H

#include "postgres.h"

#include <pthread.h>

#include "access/detoast.h"
#include "executor/executor.h"
#include "nodes/execnodes.h"
#include "nodes/extensible.h"
#include "nodes/pathnodes.h"
#include "portability/instr_time.h"
#include "utils/array.h"

#include "kernels.h"
#include "sample.h"

#define NEVER_RETURNS __attribute__((noreturn))	/* the server's own word for it is another from 18 on */

typedef enum Shuffle
{
	SHUFFLE_CORGIPILE,			/* blocks in random order, their rows shuffled in a buffer */
	SHUFFLE_BLOCK_ONLY,			/* blocks in random order, rows as stored */
	SHUFFLE_NONE				/* rows as stored */
} Shuffle;

typedef enum Rate
{
	RATE_AUTO,					/* exponential where a learning rate is given, else bounded steps */
	RATE_EXPONENTIAL,
	RATE_INVERSE_SCALING,
	RATE_CONSTANT
} Rate;

typedef enum Solver
{
	SOLVER_AUTO,				/* one of the others, by the model, the rows and the options given */
	SOLVER_SGD,
	SOLVER_EXACT,				/* normal equations of least squares, from one pass */
	SOLVER_LBFGS				/* a step for each pass over the rows */
} Solver;

/* What a training is asked for; penstock.options, read. */
typedef struct Options
{
	Loss		loss;
	Shuffle		shuffle;
	Rate		rate;
	Solver		solver;
	double		learning_rate;	/* 0: bounded steps that need none */
	double		decay;
	double		power;
	double		l1;
	double		l2;				/* negative: one over the number of rows */
	bool		standardize;
	bool		average;
	int			epochs;
	bool		epochs_given;
	uint32		batch_size;
	uint32		outputs;		/* classes of softmax, else 1 */
	uint64		seed;
	bool		intercept;
	bool		skip_nulls;
	bool		read_only;		/* rows are counted, nothing is learnt: what reading alone takes */
	int64		block_size;		/* bytes of a block; 0: such that many meet in a window */
	int64		buffer_size;	/* bytes of both windows; 0: by share */
	double		buffer_share;	/* of the table's bytes */
	int			class_count;	/* 0: labels are targets already */
	float	   *classes;		/* ascending */
	bool		balanced;		/* classes count alike, however many rows each has */
	int			weight_count;	/* 0: none were given */
	float	   *class_weights;	/* by class */
	double		validation;		/* the share of the rows that are held out; negative: by how many there are */
	char	   *title;			/* what penstock.progress calls the model; may be NULL */
	int			name_count;
	char	  **names;			/* of the columns that the features come from; none where they are an array */

	/* Of models of groups alone. */
	int			penalty_count;	/* values of l2 to choose from; 0: one */
	double	   *penalties;
	int			flag_count;
	uint32	   *flags;			/* features that are 0 or 1, which keep that size */
	int			other_count;
	float	   *other;			/* weights of a model to be measured on the same rows */
	bool		keep_judged;	/* whether the weights that were measured are wanted, beside those that are learnt from all rows */
} Options;

extern Options *read_options(const char *json);

/* Reads options whose model is another than logistic, if they name none. */
extern Options *read_options_of(const char *json, Loss usual);
extern const char *model_name(Loss loss);
extern const char *shuffle_name(Shuffle shuffle);
extern bool may_be_exact(const Options *options);
extern bool may_be_fitted(const Options *options);
extern bool needs_survey(const Options *options, bool weighted);

/* Settles that a model is learnt by passes over all rows, or refuses options that ask for SGD. */
extern void require_full_passes(Options *options);

/* Refuses what is only for models of groups. */
extern void require_single(const Options *options);

/* Turns a label into the target that stands for it; false where it stands for none, of which `label_flaw` tells. */
extern bool label_target(const Options *options, float label, float *target);
extern const char *label_flaw(const Options *options, float label, const char **hint);

/*
 * Rows packed for the learner: rows from the front, where each begins from the back. Two of them are one buffer; one
 * is filled while the other is learnt from.
 */
typedef struct Window
{
	float	   *words;
	Size		capacity;		/* in words, as are `used` and the places of rows */
	Size		used;
	uint32		rows;
	uint32		top;			/* one more than the largest index of a sparse row */
	bool		shuffled;
	uint64		seed;
} Window;

static inline uint32 *
window_order(const Window *window)
{
	return (uint32 *) window->words + window->capacity - window->rows;
}

/* The compute thread. It touches the learner and the window it was given, and calls no function of the server. */
typedef struct Worker
{
	Learner		learner;
	pthread_t	thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool		made;
	bool		started;
	bool		quit;
	volatile bool stop;
	Window	   *job;			/* NULL: idle */
	Survey	   *survey;			/* windows are surveyed where it is there, */
	Fit		   *fit;			/* or fitted, and else learnt from */
	int64		result;
	double		busy;			/* seconds spent learning */
	MemoryContext context;
	MemoryContextCallback end;

	/* Features are packed as (x - center) * factor; NULL where they are as they come. Sparse ones are not centered. */
	float	   *center;
	float	   *factor;
	uint32		factors;
	float	   *class_weights;	/* of mean 1 over the rows; NULL where all count alike */
	double		weight_mean;	/* of the rows' own weights, which they are divided by when the survey has told it; until then 1 */
	bool		exact;			/* the survey has all that the model is made of */
	bool		fitted;			/* the model is that of L-BFGS */
	uint32		passes;			/* that it took */
	double		constant_score; /* of the best constant prediction, where rows were surveyed: R2 or accuracy, and log loss */
	double		constant_loss;
	bool		surveyed;
	double		residual;		/* of the exact model: its sum of squared residuals, and the label's spread */
	double		spread;
} Worker;

extern Worker *worker_make(MemoryContext context, const Options *options, bool sparse, bool weighted, uint32 width);
extern void worker_reset(Worker *worker);
extern void *zeros(MemoryContext context, Size count, Size size);
extern void worker_survey(Worker *worker, const Options *options);
extern void worker_surveyed(Worker *worker, const Options *options, uint32 width, bool fits, double held_out);
extern bool worker_can_fit(const Worker *worker, const Options *options, uint32 width);
extern void worker_fit_start(Worker *worker, const Options *options);
extern bool worker_fit_step(Worker *worker, const Options *options);
extern void worker_forget_survey(Worker *worker);
extern void worker_weights(const Worker *worker, Size width, Datum *coef, Datum *intercept);
extern Datum float_array(const float *from, Size count);
extern double worker_wait(Worker *worker);
extern double worker_give(Worker *worker, Window *window);
extern void worker_end(Worker *worker);

/* What is said of rows that cannot be learnt from. */
#define WEIGHT_HINT "Weights are 0 or positive numbers, and rows of weight 0 are left out."
extern int	err_place(ItemPointer tid, const char *table, uint64 number);	/* by a place in a table, else by the number */
extern const char *missing_feature(const Options *options, Datum features, bool isnull);
extern const char *value_flaw(const Options *options, const int32 *indices, const float *values, uint32 count);

/* The columns of penstock.epoch. */
enum
{
	EPOCH_NUMBER, EPOCH_LOSS, EPOCH_SCORE, EPOCH_SECONDS, EPOCH_ROWS, EPOCH_COEF, EPOCH_INTERCEPT, EPOCH_TRAINING_SCORE,
	EPOCH_SAMPLE_ROWS, EPOCH_WEIGHT_MEAN, EPOCH_HELD_OUT_LOSS, EPOCH_HELD_OUT_SCORE, EPOCH_HELD_OUT_ROWS, EPOCH_COLUMNS
};

extern TupleDesc epoch_type(Oid type);

/* The nodes. */
extern CustomScanMethods sgd_methods;
extern CustomScanMethods tuple_shuffle_methods;
extern CustomScanMethods block_shuffle_methods;

/* A node's place in the table that the last row came from; false where it is not known. */
extern bool block_shuffle_last(PlanState *state, ItemPointer tid, const char **table);

/* A number for that row, of its own among all rows that the node reads. */
extern bool block_shuffle_place(PlanState *state, uint64 *place);
extern bool block_shuffle_pages(PlanState *state, int64 *pages);
extern const uint64 *block_shuffle_loaded(PlanState *state);
extern int64 block_shuffle_sample(PlanState *state, void (*visit) (void *argument, TupleTableSlot *slot), void *argument);
extern void block_shuffle_settle(PlanState *state, const Options *options, BlockNumber block_pages, uint32 parts);

/* Gives the next window of rows, NULL at the end of an epoch. The first row makes the worker. */
extern Window *tuple_shuffle_next(PlanState *state);
extern Worker *tuple_shuffle_worker(PlanState *state);

/* Holds a share of the rows out of all passes that come next. */
extern void tuple_shuffle_hold_out(PlanState *state, double share);

/* Keeps a sample of the rows of the pass that comes next: of those held out, where there are any. */
extern void tuple_shuffle_keep(PlanState *state);
extern const Sample *tuple_shuffle_kept(PlanState *state);

/* Reads an epoch's rows and packs none; returns how many there are. */
extern uint64 tuple_shuffle_count(PlanState *state);
extern uint32 tuple_shuffle_width(PlanState *state);
extern bool tuple_shuffle_weighted(PlanState *state);
extern uint64 tuple_shuffle_skipped(PlanState *state);

extern void planner_install(void);

#define SHORT_MOST 128			/* bytes of an array with a short header */

/* An array as it can be read. `room`, of SHORT_MOST bytes, spares an allocation for each short one. */
static inline ArrayType *
plain_array(Datum datum, char *room)
{
	struct varlena *value = (struct varlena *) DatumGetPointer(datum);
	Size		size;

	if (VARATT_IS_4B_U(value))
		return (ArrayType *) value;
	if (VARATT_IS_EXTERNAL(value) || !VARATT_IS_SHORT(value))
		return (ArrayType *) detoast_attr(value);
	size = VARSIZE_SHORT(value) - VARHDRSZ_SHORT;
	memcpy(room + VARHDRSZ, VARDATA_SHORT(value), size);
	SET_VARSIZE(room, size + VARHDRSZ);
	return (ArrayType *) room;
}

static inline double
seconds_since(instr_time start)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, start);
	return INSTR_TIME_GET_DOUBLE(now);
}

#endif							/* PENSTOCK_H */
