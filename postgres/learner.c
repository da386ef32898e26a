/*
 * learner.c: the compute thread beside the backend, and how windows are handed to it.
 *
 * The thread has all signals blocked, calls no function of the server, and touches only its learner and the window it
 * was given. It ends with the memory context that it was made in, also where a query fails or is cancelled: the context
 * joins the thread before any of the memory goes.
 */
#include "postgres.h"

#include <signal.h>
#include <time.h>

#include "miscadmin.h"
#include "utils/memutils.h"

#include "penstock.h"

static double
clock_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void
learn_window(Worker *worker, Window *window)
{
	uint32	   *order = window_order(window);

	if (worker->survey)
	{
		worker->result = survey_rows(worker->survey, window->words, order, window->rows, &worker->stop);
		return;
	}
	if (worker->fit)
	{
		worker->result = fit_add(&worker->learner, worker->fit, window->words, order, window->rows, &worker->stop);
		return;
	}
	/* Places were written from the back to the front. */
	for (uint32 i = 0, j = window->rows; i + 1 < j; i++)
	{
		uint32		kept = order[i];

		order[i] = order[--j];
		order[j] = kept;
	}
	if (window->shuffled)
		shuffle_order(order, window->rows, window->seed);
	worker->result = learn_rows(&worker->learner, window->words, order, window->rows, &worker->stop);
}

static void *
worker_main(void *argument)
{
	Worker	   *worker = argument;

	pthread_mutex_lock(&worker->lock);
	for (;;)
	{
		double		began;

		while (worker->job == NULL && !worker->quit)
			pthread_cond_wait(&worker->changed, &worker->lock);
		if (worker->quit)
			break;
		pthread_mutex_unlock(&worker->lock);
		began = clock_seconds();
		learn_window(worker, worker->job);
		worker->busy += clock_seconds() - began;
		pthread_mutex_lock(&worker->lock);
		worker->job = NULL;
		pthread_cond_signal(&worker->changed);
	}
	pthread_mutex_unlock(&worker->lock);
	return NULL;
}

void
worker_end(Worker *worker)
{
	if (worker->started)
	{
		worker->stop = true;
		pthread_mutex_lock(&worker->lock);
		worker->quit = true;
		pthread_cond_signal(&worker->changed);
		pthread_mutex_unlock(&worker->lock);
		pthread_join(worker->thread, NULL);
		worker->started = false;
	}
	if (worker->made)
	{
		pthread_cond_destroy(&worker->changed);
		pthread_mutex_destroy(&worker->lock);
		worker->made = false;
	}
}

static void
end_with_context(void *argument)
{
	worker_end(argument);
}

void *
zeros(MemoryContext context, Size count, Size size)
{
	if (count > MaxAllocHugeSize / size)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("the model is too large")));
	return MemoryContextAllocExtended(context, Max(count, 1) * size, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

static void
require_room(Size width, Size outputs)
{
	/* A weight travels to other programs as eight bytes, and a field holds 1 GB. */
	if (width * outputs > 125000000)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a model of %zu features and %zu outputs has more than 125000000 weights, all that a field holds",
						width, outputs)));
}

Worker *
worker_make(MemoryContext context, const Options *options, bool sparse, bool weighted, uint32 width)
{
	Worker	   *worker = MemoryContextAllocZero(context, sizeof(Worker));
	Learner    *l = &worker->learner;
	Size		outputs = options->outputs;

	require_room(width, outputs);
	worker->context = context;
	worker->result = LEARNT_ALL;
	worker->weight_mean = 1;
	l->loss = options->loss;
	l->sparse = sparse;
	l->weighted = weighted;
	l->intercept = options->intercept;
	l->outputs = outputs;
	l->width = width;
	l->batch_size = options->batch_size;
	l->l1 = options->l1;
	l->l2 = options->l2;
	l->scale = 1;
	l->w = zeros(context, outputs * width, sizeof(float));
	l->b = zeros(context, outputs, sizeof(float));
	l->scores = zeros(context, outputs, sizeof(float));
	l->sums = zeros(context, outputs, sizeof(float));
	if (sparse && options->l1 > 0)
		l->seen = zeros(context, width, sizeof(double));
	if (!sparse && options->batch_size > 1)
		l->gradient = zeros(context, outputs * width, sizeof(float));
	if (sparse && options->batch_size > 1)
		l->pushes = zeros(context, outputs * options->batch_size, sizeof(float));
	if (needs_survey(options, weighted))
		worker_survey(worker, options);

	pthread_mutex_init(&worker->lock, NULL);
	pthread_cond_init(&worker->changed, NULL);
	worker->made = true;
	worker->end.func = end_with_context;
	worker->end.arg = worker;
	MemoryContextRegisterResetCallback(context, &worker->end);
	return worker;
}

/* Forgets what was learnt, for a plan that is run again. */
void
worker_reset(Worker *worker)
{
	Learner    *l = &worker->learner;

	worker->stop = true;
	worker_wait(worker);
	worker->stop = false;
	worker->result = LEARNT_ALL;
	memset(l->w, 0, sizeof(float) * l->outputs * l->width);
	memset(l->b, 0, sizeof(float) * l->outputs);
	memset(l->sums, 0, sizeof(float) * l->outputs);
	if (l->seen)
		memset(l->seen, 0, sizeof(double) * l->width);
	if (l->gradient)
		memset(l->gradient, 0, sizeof(float) * l->outputs * l->width);
	worker_forget_survey(worker);
	l->step = 0;
	l->scale = 1;
	l->owed = 0;
}

/* Waits until the thread is idle; returns the seconds of it. Interrupts are seen within ten milliseconds. */
double
worker_wait(Worker *worker)
{
	double		began = clock_seconds();

	for (;;)
	{
		struct timespec until;
		bool		idle;

		pthread_mutex_lock(&worker->lock);
		if (worker->job != NULL)
		{
			clock_gettime(CLOCK_REALTIME, &until);
			until.tv_nsec += 10000000;
			if (until.tv_nsec >= 1000000000)
			{
				until.tv_sec++;
				until.tv_nsec -= 1000000000;
			}
			pthread_cond_timedwait(&worker->changed, &worker->lock, &until);
		}
		idle = worker->job == NULL;
		pthread_mutex_unlock(&worker->lock);
		if (idle)
			return clock_seconds() - began;
		CHECK_FOR_INTERRUPTS();
	}
}

static void
grow_mean(Worker *worker, float **w, float **b, Size room)
{
	const Learner *l = &worker->learner;
	Size		outputs = l->outputs;
	float	   *mean = zeros(worker->context, (room + 1) * outputs, sizeof(float));

	memcpy(mean, *w, l->width * outputs * sizeof(float));
	memcpy(mean + room * outputs, *b, outputs * sizeof(float));
	pfree(*w);
	*w = mean;
	*b = mean + room * outputs;
}

/* Makes room for features that no row had before. The thread is idle. */
static void
grow(Worker *worker, uint32 width)
{
	Learner    *l = &worker->learner;
	Size		room = Max((Size) width, Min((Size) l->width * 2, 125000000 / l->outputs));
	Size		outputs = l->outputs;

	require_room(width, outputs);
	if (worker->fit)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("the rows have features that were not there when they were first read"),
				 errhint("L-BFGS reads the same rows again and again; use \"solver\": \"sgd\" for a query that gives other rows each time.")));
	l->w = repalloc_huge(l->w, room * outputs * sizeof(float));
	memset(l->w + l->width * outputs, 0, (room - l->width) * outputs * sizeof(float));
	if (l->mean_w)				/* features that the survey has not seen: the query gives other rows each time */
	{
		grow_mean(worker, &l->mean_w, &l->mean_b, room);
		grow_mean(worker, &l->epochs_w, &l->epochs_b, room);
	}
	if (worker->survey)
	{
		worker->survey->square = repalloc_huge(worker->survey->square, (room + 1) * sizeof(double));
		memset(worker->survey->square + l->width + 1, 0, (room - l->width) * sizeof(double));
		worker->survey->present = repalloc_huge(worker->survey->present, (room + 1) * sizeof(double));
		memset(worker->survey->present + l->width + 1, 0, (room - l->width) * sizeof(double));
		worker->survey->width = room;
	}
	if (l->seen)
	{
		l->seen = repalloc_huge(l->seen, room * sizeof(double));
		memset(l->seen + l->width, 0, (room - l->width) * sizeof(double));
	}
	l->width = room;
}

static void
start(Worker *worker)
{
	sigset_t	all,
				before;
	int			error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&worker->thread, NULL, worker_main, worker);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("could not start the thread that learns: %s", strerror(error))));
	worker->started = true;
}

/* Hands over a window when the last one has been learnt from; returns the seconds waited for that. */
double
worker_give(Worker *worker, Window *window)
{
	double		waited = worker_wait(worker);

	if (worker->result >= 0)
		ereport(ERROR,
				(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
				 errmsg("the weights have left all bounds after %.0f updates", worker->learner.step),
				 errhint("Use a smaller learning_rate, or leave it out.")));
	if (window == NULL)
		return waited;
	if (window->top > worker->learner.width)
		grow(worker, window->top);
	if (!worker->started)
		start(worker);
	pthread_mutex_lock(&worker->lock);
	worker->job = window;
	pthread_cond_signal(&worker->changed);
	pthread_mutex_unlock(&worker->lock);
	return waited;
}
