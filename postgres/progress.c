/*
 * progress.c: how far trainings are, for other sessions to see in penstock.progress.
 *
 * The server's own progress views have no room for extensions. From PostgreSQL 17 on a library may ask for named shared memory
 * without being loaded at the start of the server; before, there is no progress, and the view says so. A training has one place
 * of a few there; where all are taken, it goes unseen.
 */
#include "postgres.h"

#include <math.h>

#include "fmgr.h"
#include "miscadmin.h"

#include "progress.h"

PG_FUNCTION_INFO_V1(penstock_progress);

#if PG_VERSION_NUM < 170000

Progress *
progress_start(MemoryContext context, const char *model, const char *kind)
{
	return NULL;
}

void
progress_epoch(Progress *progress, Phase phase, int epoch, int epochs, uint64 rows, double loss)
{
}

void
progress_window(Progress *progress, uint32 rows, double loss)
{
}

Datum
penstock_progress(PG_FUNCTION_ARGS)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("penstock.progress needs PostgreSQL 17 or later"),
			 errdetail("Servers before that have no shared memory for libraries that are loaded as they are needed.")));
	PG_RETURN_NULL();
}

#else

#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "storage/dsm_registry.h"
#include "storage/procarray.h"
#include "storage/spin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#define PLACES 64
#define SEGMENT "penstock progress 1"	/* with a number that changes as the structures do: servers may have both */
#define COLUMNS 13

typedef struct Figures
{
	int			pid;			/* 0: a free place */
	Oid			database;
	Oid			user;
	char		model[NAMEDATALEN];
	char		kind[NAMEDATALEN];
	Phase		phase;
	int			epoch;
	int			epochs;
	uint64		windows;		/* of the epoch, as are `rows` */
	uint64		rows;
	uint64		rows_total;
	double		loss;
	TimestampTz began;			/* the first epoch */
	TimestampTz epoch_began;
} Figures;

struct Progress
{
	slock_t		lock;
	Figures		figures;
};

typedef struct Release
{
	MemoryContextCallback callback;
	Progress   *progress;
} Release;

static void
make_places(void *places
#if PG_VERSION_NUM >= 190000
			,void *unused
#endif
)
{
	memset(places, 0, sizeof(Progress) * PLACES);
	for (int i = 0; i < PLACES; i++)
		SpinLockInit(&((Progress *) places)[i].lock);
}

static Progress *
places(void)
{
	bool		found;

	return GetNamedDSMSegment(SEGMENT, sizeof(Progress) * PLACES, make_places, &found
#if PG_VERSION_NUM >= 190000
							  ,NULL
#endif
		);
}

static void
release(void *argument)
{
	Progress   *progress = ((Release *) argument)->progress;

	SpinLockAcquire(&progress->lock);
	progress->figures.pid = 0;
	SpinLockRelease(&progress->lock);
}

Progress *
progress_start(MemoryContext context, const char *model, const char *kind)
{
	Figures		figures = {.pid = MyProcPid,.database = MyDatabaseId,.user = GetUserId(),.began = GetCurrentTimestamp()};
	Release    *freed = MemoryContextAllocZero(context, sizeof(Release));
	Progress   *all = places();

	if (model)
		memcpy(figures.model, model, pg_mbcliplen(model, strlen(model), NAMEDATALEN - 1));
	strlcpy(figures.kind, kind, NAMEDATALEN);
	figures.epoch_began = figures.began;
	figures.loss = NAN;
	for (int i = 0; i < PLACES; i++)
	{
		bool		taken;

		SpinLockAcquire(&all[i].lock);
		taken = all[i].figures.pid != 0;
		if (!taken)
			all[i].figures = figures;
		SpinLockRelease(&all[i].lock);
		if (taken)
			continue;
		freed->progress = &all[i];
		freed->callback.func = release;
		freed->callback.arg = freed;
		MemoryContextRegisterResetCallback(context, &freed->callback);
		return &all[i];
	}
	return NULL;
}

void
progress_epoch(Progress *progress, Phase phase, int epoch, int epochs, uint64 rows, double loss)
{
	TimestampTz now = GetCurrentTimestamp();
	Figures    *figures;

	if (progress == NULL)
		return;
	figures = &progress->figures;
	SpinLockAcquire(&progress->lock);
	if (figures->phase != phase)
		figures->began = now;
	figures->phase = phase;
	figures->epoch = epoch;
	figures->epochs = epochs;
	figures->windows = figures->rows = 0;
	figures->rows_total = rows;
	figures->loss = loss;
	figures->epoch_began = now;
	SpinLockRelease(&progress->lock);
}

void
progress_window(Progress *progress, uint32 rows, double loss)
{
	if (progress == NULL)
		return;
	SpinLockAcquire(&progress->lock);
	progress->figures.windows++;
	progress->figures.rows += rows;
	if (!isnan(loss))
		progress->figures.loss = loss;
	SpinLockRelease(&progress->lock);
}

/* What is left, if all epochs take alike; false where it is not known how many there are, or how many rows. */
static bool
left_over(const Figures *figures, Interval *left)
{
	double		done,
				seconds = (GetCurrentTimestamp() - figures->began) / 1e6;

	if (figures->epochs == 0 || figures->rows_total == 0)
		return false;
	done = (figures->epoch - 1 + Min((double) figures->rows / figures->rows_total, 1)) / figures->epochs;
	memset(left, 0, sizeof(Interval));
	if (done <= 0)
		return false;
	left->time = (TimeOffset) (rint(seconds * (1 - done) / done) * USECS_PER_SEC);
	return true;
}

static void
show(const Figures *figures, Datum *values, bool *nulls)
{
	static const char *const phases[] = {"survey", "sgd", "lbfgs"};
	bool		told = has_privs_of_role(GetUserId(), figures->user) || has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	char	   *database = get_database_name(figures->database),
			   *user = GetUserNameFromId(figures->user, true);
	Interval   *left = palloc(sizeof(Interval));

	memset(nulls, true, sizeof(bool) * COLUMNS);
	values[0] = Int32GetDatum(figures->pid);
	values[1] = CStringGetDatum(database ? database : "");
	values[2] = CStringGetDatum(user ? user : "");
	nulls[0] = false;
	nulls[1] = database == NULL;
	nulls[2] = user == NULL;
	if (!told)					/* as in the server's own views: whose training it is, and no more */
		return;
	values[3] = CStringGetTextDatum(figures->model);
	nulls[3] = *figures->model == '\0';
	values[4] = CStringGetTextDatum(figures->kind);
	values[5] = CStringGetTextDatum(phases[figures->phase]);
	values[6] = Int32GetDatum(figures->epoch);
	values[7] = Int32GetDatum(figures->epochs);
	values[8] = Int64GetDatum((int64) figures->windows);
	values[9] = Int64GetDatum((int64) figures->rows);
	values[10] = Int64GetDatum((int64) figures->rows_total);
	values[11] = Float8GetDatum(figures->loss);
	values[12] = IntervalPGetDatum(left);
	nulls[4] = nulls[5] = nulls[6] = nulls[8] = nulls[9] = false;
	nulls[7] = figures->epochs == 0;
	nulls[10] = figures->rows_total == 0;
	nulls[11] = isnan(figures->loss);
	nulls[12] = !left_over(figures, left);
}

Datum
penstock_progress(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Progress   *all = places();

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < PLACES; i++)
	{
		Figures		figures;
		Datum		values[COLUMNS];
		bool		nulls[COLUMNS];

		SpinLockAcquire(&all[i].lock);
		figures = all[i].figures;
		SpinLockRelease(&all[i].lock);
		if (figures.pid == 0 || BackendPidGetProc(figures.pid) == NULL)
			continue;
		show(&figures, values, nulls);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	PG_RETURN_NULL();
}

#endif
