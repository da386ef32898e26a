/*
 * worker_survey.c: the pass before the first epoch, and what the epochs take from it.
 *
 * Features are brought to mean 0 and spread 1 as rows are packed; sparse ones, which must stay sparse, to a root mean square of
 * 1, of more than NARROW_WIDTH features over the rows in which they are not 0: a flag stays a flag, however rare.
 * The penalty, the first guess of the intercept and the room for averages follow from the survey; so does the model itself where
 * least squares are solved exactly, or L-BFGS goes over the rows again and again.
 */
#include "postgres.h"

#include <math.h>

#include "optimizer/optimizer.h"

#include "penstock.h"

#define NARROW_WIDTH 2000		/* features, up to which products of all pairs are kept (16 MB) and sparse rows are scaled as dense ones */

static void
end_survey(Worker *worker)
{
	Survey	   *s = worker->survey;
	void	   *parts[] = {s->counts, s->mean, s->square, s->present, s->block, s->products, s->columns, s};

	for (int i = 0; i < lengthof(parts); i++)
		if (parts[i])
			pfree(parts[i]);
	worker->survey = NULL;
}

/* Has the windows that come next surveyed, not learnt from. */
void
worker_survey(Worker *worker, const Options *options)
{
	const Learner *l = &worker->learner;
	Survey	   *s = MemoryContextAllocZero(worker->context, sizeof(Survey));
	Size		columns = (Size) l->width + 1;

	if (options->solver == SOLVER_EXACT && (l->sparse || l->width > NARROW_WIDTH))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 l->sparse ? errmsg("the solver \"exact\" is for dense rows")
				 : errmsg("the solver \"exact\" is for up to %d features, not %u", NARROW_WIDTH, l->width),
				 errhint("Use \"solver\": \"sgd\".")));
	worker->exact = options->solver == SOLVER_EXACT;
	worker->survey = s;
	s->loss = l->loss;
	s->sparse = l->sparse;
	s->weighted = l->weighted;
	s->width = l->width;
	s->counts = zeros(worker->context, Max(l->outputs, 2), sizeof(double));
	s->square = zeros(worker->context, columns, sizeof(double));
	if (l->sparse)
		s->present = zeros(worker->context, columns, sizeof(double));
	else
	{
		s->mean = zeros(worker->context, columns, sizeof(double));
		s->block = zeros(worker->context, 2 * columns, sizeof(double));
	}
	if (worker->exact)
	{
		s->products = zeros(worker->context, columns * (columns + 1) / 2, sizeof(double));
		s->columns = zeros(worker->context, columns * SURVEY_ROWS, sizeof(double));
	}
}

/* What brings a feature of that spread to 1, and one that is constant, or varies by rounding only, to 0. */
static float
factor_of(double spread, double mean)
{
	float		factor = spread > 1e-7 * fabs(mean) ? (float) (1 / spread) : 0;

	return isfinite(factor) ? factor : 0;
}

static void
set_scaling(Worker *worker)
{
	Learner    *l = &worker->learner;
	Survey	   *s = worker->survey;

	worker->factors = l->width;
	worker->factor = zeros(worker->context, l->width, sizeof(float));
	if (!s->sparse)
		worker->center = zeros(worker->context, l->width, sizeof(float));
	for (Size j = 0; j < l->width; j++)
	{
		double		rows = s->sparse && l->width > NARROW_WIDTH ? Max(s->present[j], 1) : s->rows;

		worker->factor[j] = factor_of(sqrt(s->square[j] / rows), s->sparse ? 0 : s->mean[j]);
		if (!s->sparse)
			worker->center[j] = (float) s->mean[j];
	}
}

/* What the rows of each class count, such that the mean over all rows is 1. */
static void
set_class_weights(Worker *worker, const Options *options)
{
	Learner    *l = &worker->learner;
	const Survey *s = worker->survey;
	uint32		classes = Max(l->outputs, 2);
	double		sum = 0;

	if (!options->balanced && options->weight_count == 0)
		return;
	worker->class_weights = zeros(worker->context, classes, sizeof(float));
	for (int turn = 0; turn < 2; turn++)
		for (uint32 c = 0; c < classes; c++)
		{
			double		weight = !options->balanced ? options->class_weights[c] : s->counts[c] > 0 ? 1 / s->counts[c] : 1;

			if (turn == 0)
				sum += weight * s->counts[c];
			else
				worker->class_weights[c] = (float) (weight * s->rows / sum);
		}
	l->class_weights = worker->class_weights;
}

/* What the rows of a class come to, with weights and half a row at least. */
static double
class_mass(const Worker *worker, uint32 c)
{
	return Max(worker->survey->counts[c], 0.5) * (worker->class_weights ? worker->class_weights[c] : 1);
}

/* The intercept that is best without any feature: the label's mean, or the logarithms of the classes' shares. */
static void
set_first_guess(Worker *worker)
{
	Learner    *l = &worker->learner;
	const Survey *s = worker->survey;

	if (!l->intercept)
		return;
	if (l->loss == LOSS_SQUARED)
		l->b[0] = (float) (s->label_sum / s->rows);
	else if (l->loss == LOSS_LOGISTIC)
		l->b[0] = (float) log(class_mass(worker, 1) / class_mass(worker, 0));
	else if (l->loss == LOSS_SOFTMAX)
		for (uint32 c = 0; c < l->outputs; c++)
			l->b[c] = (float) log(class_mass(worker, c) / s->rows);
}

#define SNAPSHOTS 128			/* of an epoch, at most; or as many as copy a twentieth of its features, if these are 4 at least */
#define FEWEST_SNAPSHOTS 4
#define SNAPSHOT_COST 0.05

/* The rows from one snapshot to the next, after snapshot_interval of Penstock's sgd/model.py; 0 for none. */
static uint64
snapshot_interval(uint64 rows, double entries, double weights)
{
	uint64		count = (uint64) Min(Min(SNAPSHOT_COST * rows * Max(entries, 1) / weights, SNAPSHOTS), (double) rows);

	return count >= FEWEST_SNAPSHOTS || (count == rows && rows > 0) ? (rows + count - 1) / count : 0;
}

/* Makes room for the means of snapshots; weights that are too many for these are not averaged. */
static void
start_average(Worker *worker, uint32 width, uint64 rows)
{
	Learner    *l = &worker->learner;
	Size		weights = (Size) l->outputs * l->width;

	l->snapshot_rows = snapshot_interval(rows, (double) worker->survey->entries / worker->survey->rows, (double) l->outputs * width);
	if (l->snapshot_rows == 0)
		return;
	l->epoch_rows = rows;
	l->averaged = 0;
	l->mean_w = zeros(worker->context, weights + l->outputs, sizeof(float));
	l->mean_b = l->mean_w + weights;
	l->epochs_w = zeros(worker->context, weights + l->outputs, sizeof(float));
	l->epochs_b = l->epochs_w + weights;
}

static void
solve(Worker *worker)
{
	Learner    *l = &worker->learner;
	Survey	   *s = worker->survey;

	if (worker->factor == NULL)
	{
		/* Unpenalized, the intercept takes up the means; without one features are as they come. */
		set_scaling(worker);
		for (Size j = 0; j < l->width; j++)
		{
			worker->factor[j] = 1;
			if (!l->intercept)
				worker->center[j] = 0;
		}
	}
	worker->spread = s->square[l->width];
	worker->residual = solve_least_squares(s, worker->center, worker->factor, l->l2 * s->rows, l->b[0], l->w);
}

#define FIT_WEIGHTS 100000		/* up to which L-BFGS is used: it keeps 25 numbers of 8 bytes for each */
#define SPARSE_FIT_WEIGHTS 600000	/* the same of sparse rows, where L-BFGS is asked for */

static void
end_fit(Worker *worker)
{
	Fit		   *fit = worker->fit;
	void	   *parts[] = {fit->point, fit->steps, fit->changes, fit->inverse, fit->scores, fit};

	for (int i = 0; i < lengthof(parts); i++)
		pfree(parts[i]);
	worker->fit = NULL;
}

/*
 * Whether L-BFGS can be used: of few features, and where nobody asks for it, of rows that can be expected to stay in the system's
 * cache, since it reads them more often than SGD.
 */
bool
worker_can_fit(const Worker *worker, const Options *options, uint32 width)
{
	const Learner *l = &worker->learner;
	const Survey *s = worker->survey;
	double		words = s->sparse ? 2.0 * s->entries + 2.0 * s->rows : (double) s->rows * (width + 1);

	if (options->solver == SOLVER_LBFGS && s->sparse)
		return may_be_fitted(options) && (Size) width * l->outputs <= SPARSE_FIT_WEIGHTS;
	return may_be_fitted(options) && width <= NARROW_WIDTH && (Size) l->width * l->outputs <= FIT_WEIGHTS &&
		(options->solver == SOLVER_LBFGS || words * sizeof(float) <= (double) effective_cache_size * BLCKSZ);
}

/* Has the windows that come next fitted, not learnt from. */
void
worker_fit_start(Worker *worker, const Options *options)
{
	Learner    *l = &worker->learner;
	Fit		   *fit = MemoryContextAllocZero(worker->context, sizeof(Fit));

	fit->count = (Size) l->outputs * (l->width + 1);
	fit->most_passes = options->epochs_given ? options->epochs : 100;
	fit->tolerance = 1e-4;
	fit->point = zeros(worker->context, 5 * fit->count, sizeof(double));
	fit->steps = zeros(worker->context, FIT_MEMORY * fit->count, sizeof(double));
	fit->changes = zeros(worker->context, FIT_MEMORY * fit->count, sizeof(double));
	fit->inverse = zeros(worker->context, FIT_MEMORY, sizeof(double));
	fit->scores = zeros(worker->context, l->outputs, sizeof(double));
	fit_start(l, fit);
	worker->fit = fit;
}

/* Ends a pass over the rows; true where there is to be another. */
bool
worker_fit_step(Worker *worker, const Options *options)
{
	Fit		   *fit = worker->fit;

	if (fit_step(&worker->learner, fit))
		return true;
	worker->fitted = true;
	worker->passes = fit->passes;
	if (!fit->converged && !options->epochs_given)
		ereport(NOTICE,
				(errmsg("L-BFGS has not come to rest within %u passes over the rows", fit->passes),
				 errhint("The model is usable; \"epochs\" with \"solver\": \"lbfgs\" allows more passes, and a larger l2 needs fewer.")));
	end_fit(worker);
	return false;
}

/* Notes what a constant prediction comes to, which a model should be better than. */
static void
set_constant(Worker *worker)
{
	const Survey *s = worker->survey;

	worker->surveyed = true;
	worker->constant_score = worker->constant_loss = 0;
	for (uint32 c = 0; s->loss != LOSS_SQUARED && c < Max(worker->learner.outputs, 2); c++)
	{
		double		share = s->counts[c] / s->rows;

		worker->constant_score = Max(worker->constant_score, share);
		worker->constant_loss -= share > 0 ? share * log(share) : 0;
	}
}

/* Brings what was summed by weights to weights of mean 1, which the learner's rows have. */
static void
settle_weights(Worker *worker, uint32 width)
{
	Survey	   *s = worker->survey;
	double		mean = s->mass / s->rows;

	worker->weight_mean = mean;
	if (!s->weighted)
		return;
	s->label_sum /= mean;
	for (uint32 c = 0; c < Max(worker->learner.outputs, 2); c++)
		s->counts[c] /= mean;
	for (Size j = 0; j <= s->width; j++)
	{
		s->square[j] /= mean;
		if (s->present)
			s->present[j] /= mean;
	}
	for (Size i = 0; s->products && i < ((Size) width + 1) * (width + 2) / 2; i++)
		s->products[i] /= mean;
}

/* Makes of the survey, a share of whose rows is held out now, what the epochs need: scaling, penalty, first guess, room for averages; or the exact model itself. */
void
worker_surveyed(Worker *worker, const Options *options, uint32 width, bool fits, double held_out)
{
	Learner    *l = &worker->learner;
	Survey	   *s = worker->survey;
	double		rows = s->rows * (1 - held_out);

	if (fits && s->sparse)
		l->width = width;		/* which grew in steps; L-BFGS keeps much for each weight */
	settle_weights(worker, width);
	if (options->standardize)
		set_scaling(worker);
	if (options->l2 < 0)
		/* Many sparse features are mostly rare, and 1 / rows holds these too close to zero; as config.py has it for ftrl. */
		l->l2 = (s->sparse && width > NARROW_WIDTH && s->loss != LOSS_SQUARED ? 0.1 : 1.0) / Max(rows, 1);
	set_constant(worker);
	set_class_weights(worker, options);
	set_first_guess(worker);
	if (worker->exact)
		solve(worker);
	else if (options->average && !fits)
		start_average(worker, width, (uint64) rint(rows));
	end_survey(worker);
}

/* Forgets what a survey told, for a plan that is run again. */
void
worker_forget_survey(Worker *worker)
{
	Learner    *l = &worker->learner;
	void	   *parts[] = {worker->factor, worker->center, worker->class_weights, l->mean_w, l->epochs_w};

	if (worker->survey)
		end_survey(worker);
	if (worker->fit)
		end_fit(worker);
	worker->fitted = worker->surveyed = false;
	worker->weight_mean = 1;
	for (int i = 0; i < lengthof(parts); i++)
		if (parts[i])
			pfree(parts[i]);
	worker->factor = worker->center = worker->class_weights = l->mean_w = l->epochs_w = NULL;
	l->class_weights = NULL;
}
