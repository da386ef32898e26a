/*
 * predict.c: predictions in any query.
 *
 * With weights at hand a call is an inner product. A model that is named is read from penstock.models, by the rights of
 * who asks, at the first row of a query and kept for the others. Its recipe makes features of a row's columns, and of a model for each
 * group the row's own columns say which it has. Where one expression is used by several queries, as in
 * PL/pgSQL, each of them looks whether the kept row is still the model's. Features past a sparse model's width are left
 * out, as in the rest of Penstock.
 */
#include "postgres.h"

#include <math.h>

#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "arrays.h"
#include "catalogue.h"
#include "group_keys.h"
#include "recipe.h"

PG_FUNCTION_INFO_V1(penstock_score);
PG_FUNCTION_INFO_V1(penstock_probability);
PG_FUNCTION_INFO_V1(penstock_predict);
PG_FUNCTION_INFO_V1(penstock_predict_class);
PG_FUNCTION_INFO_V1(penstock_predict_probabilities);

typedef struct Model
{
	MemoryContext context;		/* that all of it is in */
	Oid			table;			/* the row that it was read from */
	ItemPointerData place;
	TransactionId writer;
	text	   *name;
	Loss		loss;
	uint32		outputs;
	uint32		width;
	const float *coef;
	const float *intercept;
	Datum	   *classes;		/* text, one for each class */
	int			class_count;
	float	   *scores;
	Jsonb	   *parts;			/* of its recipe; NULL where there is none */
	Encoder    *encoder;		/* by the recipe, once there was a row */
	GroupKeys  *groups;			/* NULL: one model; else `coef` has those of all, each output's intercept behind its weights */
} Model;

#define MODELS 8

/* What a caller can see: two that are equal see the same rows. */
typedef struct View
{
	TransactionId xmin;
	TransactionId xmax;
	uint32		running;
	CommandId	command;
	SubTransactionId part;		/* of the own transaction: one that is rolled back takes its rows along */
	Oid			user;
} View;

typedef struct Models
{
	bool		of_rows;		/* features are made of a row's columns */
	Model	   *kept[MODELS];
	int			next;			/* the one to be let go for another */
	View		view;			/* that the kept ones are known to be current in */
	TransactionId *running;
} Models;

/* `model` names the model in an error; NULL where the weights are at hand. */
static inline float
score_of(const float *coef, uint32 width, const Row *row, const text *model)
{
	float		sum = 0;

	if (row->indices == NULL)
	{
		if (row->count != width)
			ereport(ERROR,
					(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
					 model ? errmsg("a row has %u features where model \"%s\" has %u", row->count, text_to_cstring(model), width)
					 : errmsg("a row has %u features where there are %u weights", row->count, width)));
		return dense_score(coef, row->values, width);
	}
	for (uint32 e = 0; e < row->count; e++)
	{
		if (row->indices[e] < 0)
			ereport(ERROR,
					(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
					 errmsg("a row has the index %d; indices are 0 or more", row->indices[e])));
		if ((uint32) row->indices[e] < width)
			sum += coef[row->indices[e]] * row->values[e];
	}
	return sum;
}

Datum
penstock_score(PG_FUNCTION_ARGS)
{
	ArrayType  *coef = kept_array(fcinfo, PG_GETARG_DATUM(0));
	Row			row;

	if (ARR_HASNULL(coef) || !read_row(fcinfo, 2, &row))
		PG_RETURN_NULL();
	PG_RETURN_FLOAT8((double) (PG_GETARG_FLOAT4(1) + score_of((const float *) ARR_DATA_PTR(coef), length_of(coef), &row, NULL)));
}

static double
sigmoid(double score)
{
	double		e = exp(-fabs(score));

	return (score > 0 ? 1 : e) / (1 + e);
}

Datum
penstock_probability(PG_FUNCTION_ARGS)
{
	PG_RETURN_FLOAT8(sigmoid(PG_GETARG_FLOAT8(0)));
}

static Loss
kind_of(const char *name, const char *kind)
{
	for (Loss loss = LOSS_LOGISTIC; loss <= LOSS_SOFTMAX; loss++)
		if (strcmp(kind, model_name(loss)) == 0)
			return loss;
	ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED), errmsg("model \"%s\" is of an unknown kind, \"%s\"", name, kind)));
}

static const float *
weights_of(Datum datum, Size wanted, const char *name)
{
	ArrayType  *array = DatumGetArrayTypePCopy(datum);

	if (ARR_HASNULL(array) || length_of(array) != wanted)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("model \"%s\" is damaged: it has not %zu weights", name, wanted)));
	return (const float *) ARR_DATA_PTR(array);
}

/* Reads the models of all groups. */
static void
read_groups(Model *model, const Datum *values, const char *name)
{
	ArrayType  *array = DatumGetArrayTypePCopy(values[3]);
	Size		size = (Size) model->outputs * (model->width + 1);

	model->groups = values[9] ? group_keys_read(model->context, DatumGetJsonbP(values[9])) : NULL;
	if (model->groups == NULL || ARR_HASNULL(array) || length_of(array) < (model->groups->count + model->groups->pooled) * size)
		ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED), errmsg("model \"%s\" is damaged: its groups cannot be read", name)));
	model->coef = (const float *) ARR_DATA_PTR(array);
}

/* Reads a model into the memory of the function's call. */
static Model *
load_model(FunctionCallInfo fcinfo, text *wanted)
{
	/* Read with the search path pinned to pg_catalog. */
	static const char *query = "SELECT kind, outputs, width, coef, intercept, CASE json_typeof(classes) "
		"WHEN 'array' THEN ARRAY(SELECT CASE json_typeof(c) WHEN 'number' THEN "
		"regexp_replace(c #>> '{}', '[.]0$', '') ELSE c #>> '{}' END "
		"FROM json_array_elements(classes) AS c) ELSE '{}' END, m.ctid, m.xmin, "
		"(encoder->'parts')::jsonb, CASE format WHEN 2 THEN (SELECT jsonb_object_agg(key, value) FROM json_each(header->'groups') "
		"WHERE key IN ('by', 'kinds', 'keys', 'count', 'unseen')) END, format "
		"FROM penstock.models AS m, LATERAL (SELECT header->'encoder' AS encoder OFFSET 0) AS e, "
		"LATERAL (SELECT coalesce(header->'classes', encoder->'labels'->'classes') AS classes OFFSET 0) AS c WHERE name = $1 "
		/* m@3 is a row of that name, or the default version, if that is its number: a model's first version may have none. */
		"OR (name <> $1 AND name = regexp_replace($1, '@[1-9][0-9]{0,8}$', '') AND coalesce(substring(substr(header::text, 1, 100) "
		"FROM '^[[:space:]]*[{][[:space:]]*\"version\"[[:space:]]*:[[:space:]]*[{][[:space:]]*\"number\"[[:space:]]*:[[:space:]]*([0-9]+)'), "
		"'1') = substring($1 FROM '[0-9]+$')) ORDER BY name <> $1";
	MemoryContext kept = AllocSetContextCreate(fcinfo->flinfo->fn_mcxt, "penstock model", ALLOCSET_SMALL_SIZES),
				before;
	char	   *name = text_to_cstring(wanted);
	Model	   *model;
	Datum		values[11];
	HeapTuple	row;
	int64		width;
	Oid			types[] = {TEXTOID};
	Datum		arguments[] = {PointerGetDatum(wanted)};
	Oid			table = catalogue_checked(AccessShareLock, false);
	int			level;

	if (!OidIsValid(table))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("there is no model \"%s\"", name),
				 errhint("None has been trained in this database; penstock.train makes one.")));
	SPI_connect();
	level = path_set(NULL);
	if (SPI_execute_with_args(query, 1, types, arguments, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "penstock.models cannot be read");
	path_restore(level);
	if (SPI_processed == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("there is no model \"%s\"", name),
				 errhint("SELECT name FROM penstock.models lists them.")));
	row = SPI_tuptable->vals[0];
	for (int i = 0; i < lengthof(values); i++)
	{
		bool		isnull;

		values[i] = SPI_getbinval(row, SPI_tuptable->tupdesc, i + 1, &isnull);
		if (isnull && (i == 8 || i == 9))
			values[i] = (Datum) 0;
		else if (isnull)
			ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED), errmsg("model \"%s\" is damaged", name)));
	}
	before = MemoryContextSwitchTo(kept);
	model = palloc0(sizeof(Model));
	model->context = kept;
	model->table = table;
	model->place = *(ItemPointer) DatumGetPointer(values[6]);
	model->writer = DatumGetTransactionId(values[7]);
	model->name = DatumGetTextPCopy(PointerGetDatum(wanted));
	model->parts = values[8] ? DatumGetJsonbPCopy(values[8]) : NULL;
	model->loss = kind_of(name, TextDatumGetCString(values[0]));
	model->outputs = DatumGetInt32(values[1]);
	width = DatumGetInt64(values[2]);
	if (DatumGetInt32(values[1]) < 1 || width < 0 || width > 250000000 ||
		(model->loss != LOSS_SOFTMAX && model->outputs != 1))
		ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED), errmsg("model \"%s\" is damaged", name)));
	model->width = width;
	if (DatumGetInt32(values[10]) > 2)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("model \"%s\" was made by a newer version of Penstock", name), errhint("Install that version's extension.")));
	if (DatumGetInt32(values[10]) == 2)
		read_groups(model, values, name);
	else
	{
		model->coef = weights_of(values[3], (Size) model->outputs * model->width, name);
		model->intercept = weights_of(values[4], model->outputs, name);
	}
	model->scores = palloc(sizeof(float) * model->outputs);
	deconstruct_array(DatumGetArrayTypePCopy(values[5]), TEXTOID, -1, false, TYPALIGN_INT,
					  &model->classes, NULL, &model->class_count);
	if (model->class_count != (model->loss == LOSS_SQUARED ? 0 : model->loss == LOSS_SOFTMAX ? (int) model->outputs : 2))
		ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED), errmsg("model \"%s\" is damaged: its classes do not fit", name)));
	MemoryContextSwitchTo(before);
	SPI_finish();
	return model;
}

static inline bool
is_named(const Model *model, text *name)
{
	return VARSIZE_ANY_EXHDR(model->name) == VARSIZE_ANY_EXHDR(name) &&
		memcmp(VARDATA_ANY(model->name), VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name)) == 0;
}

/* Whether the row that a model was read from is still there, as the caller sees the table; another version has another place. */
static bool
is_current(const Model *model, Snapshot snapshot)
{
	Oid			schema = get_namespace_oid("penstock", true);
	Relation	table;
	TupleTableSlot *slot;
	bool		same = false;

	if (!OidIsValid(schema) || get_relname_relid("models", schema) != model->table)
		return false;
	table = table_open(model->table, AccessShareLock);
	if (ItemPointerGetBlockNumber(&model->place) < RelationGetNumberOfBlocks(table))
	{
		ItemPointerData place = model->place;

		slot = table_slot_create(table, NULL);
		if (table_tuple_fetch_row_version(table, &place, snapshot, slot))
		{
			bool		isnull;
			Datum		writer = slot_getsysattr(slot, MinTransactionIdAttributeNumber, &isnull);

			same = !isnull && DatumGetTransactionId(writer) == model->writer;
		}
		ExecDropSingleTupleTableSlot(slot);
	}
	table_close(table, NoLock);
	return same;
}

/* Whether the caller sees what the kept models are known to be current in. Asked for every row, so the common case is cheap. */
static inline bool
is_same_view(const Models *models, Snapshot snapshot)
{
	const View *view = &models->view;
	uint32		own = snapshot->xcnt;

	if (view->command != snapshot->curcid || view->xmax != snapshot->xmax || view->xmin != snapshot->xmin ||
		view->running != own + Max(snapshot->subxcnt, 0) || view->part != GetCurrentSubTransactionId() ||
		view->user != GetUserId() || models->running == NULL)
		return false;
	return view->running == 0 ||
		((own == 0 || memcmp(models->running, snapshot->xip, sizeof(TransactionId) * own) == 0) &&
		 (own == view->running ||
		  memcmp(models->running + own, snapshot->subxip, sizeof(TransactionId) * (view->running - own)) == 0));
}

/* Lets go of models that were replaced or dropped since they were read. */
static pg_noinline void
look_again(FunctionCallInfo fcinfo, Models *models, Snapshot snapshot)
{
	uint32		running = snapshot->xcnt + Max(snapshot->subxcnt, 0);

	for (int i = 0; i < MODELS; i++)
		if (models->kept[i] && (GetUserId() != models->view.user || !is_current(models->kept[i], snapshot)))
		{
			MemoryContextDelete(models->kept[i]->context);
			models->kept[i] = NULL;
		}
	if (models->running == NULL || running > models->view.running)
	{
		if (models->running)
			pfree(models->running);
		models->running = MemoryContextAlloc(fcinfo->flinfo->fn_mcxt, sizeof(TransactionId) * (running + 1));
	}
	memcpy(models->running, snapshot->xip, sizeof(TransactionId) * snapshot->xcnt);
	memcpy(models->running + snapshot->xcnt, snapshot->subxip, sizeof(TransactionId) * (running - snapshot->xcnt));
	models->view = (View) {
		.xmin = snapshot->xmin,
		.xmax = snapshot->xmax,
		.running = running,
		.command = snapshot->curcid,
		.part = GetCurrentSubTransactionId(),
		.user = GetUserId(),
	};
}

/* Finds a model among those kept for the expression, or reads it; where names come from a column there are several. */
static Model *
model_for(FunctionCallInfo fcinfo)
{
	text	   *name = PG_GETARG_TEXT_PP(0);
	Models	   *models = fcinfo->flinfo->fn_extra;
	Snapshot	snapshot;
	Model	   *model;

	if (models == NULL)
	{
		models = fcinfo->flinfo->fn_extra = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt, sizeof(Models));
		models->of_rows = type_is_rowtype(get_fn_expr_argtype(fcinfo->flinfo, 1));
	}
	snapshot = GetActiveSnapshot();
	if (!is_same_view(models, snapshot))
		look_again(fcinfo, models, snapshot);
	for (int i = 0; i < MODELS; i++)
		if (models->kept[i] && is_named(models->kept[i], name))
			return models->kept[i];
	model = load_model(fcinfo, name);
	if (models->kept[models->next])
		MemoryContextDelete(models->kept[models->next]->context);
	models->kept[models->next] = model;
	models->next = (models->next + 1) % MODELS;
	return model;
}

/* Makes features of a row's columns by the model's recipe; false where one is missing that nothing stands for. */
static bool
encode_row(Model *model, HeapTupleHeader columns, Row *row)
{
	const Recipe *recipe;

	if (model->encoder == NULL)
	{
		if (model->parts == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("model \"%s\" does not say which columns it was learnt from", text_to_cstring(model->name)),
					 errhint("Give its features as an array.")));
		model->encoder = encoder_make(model->context, model->parts, true);
		if (model->encoder->recipe->width != model->width)
			ereport(ERROR,
					(errcode(ERRCODE_DATA_CORRUPTED),
					 errmsg("model \"%s\" is damaged: its recipe makes %u features for %u weights", text_to_cstring(model->name),
							model->encoder->recipe->width, model->width)));
	}
	recipe = model->encoder->recipe;
	if (!encoder_run(model->encoder, columns))
		return false;
	row->indices = recipe->indices;
	row->values = recipe->values;
	row->count = recipe->count;
	return true;
}

static inline bool
finite_scores(const Model *model)
{
	for (uint32 c = 0; c < model->outputs; c++)
		if (!isfinite(model->scores[c]))
			return false;
	return true;
}

/* Scores a row for each output of a named model; false where a feature is null, or a score is not a finite number. */
static inline bool
score_row(FunctionCallInfo fcinfo, Model *model)
{
	Row			row;
	int32		group;
	const float *coef;

	if (model->groups && !((Models *) fcinfo->flinfo->fn_extra)->of_rows)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("model \"%s\" is a model per group, and an array of features does not say which", text_to_cstring(model->name)),
				 errhint("Give the row: penstock.predict('m', t) FROM t.")));
	if (((Models *) fcinfo->flinfo->fn_extra)->of_rows
		? !encode_row(model, PG_GETARG_HEAPTUPLEHEADER(1), &row) : !read_row(fcinfo, 1, &row))
		return false;
	if (model->groups)
	{
		group = group_keys_find(model->groups, PG_GETARG_HEAPTUPLEHEADER(1));
		if (group < 0 && !model->groups->pooled)
			return false;
		coef = model->coef + (Size) (group < 0 ? model->groups->count : group) * model->outputs * (model->width + 1);
		for (uint32 c = 0; c < model->outputs; c++, coef += model->width + 1)
			model->scores[c] = coef[model->width] + score_of(coef, model->width, &row, model->name);
		return finite_scores(model);
	}
	for (uint32 c = 0; c < model->outputs; c++)
		model->scores[c] = model->intercept[c] + score_of(model->coef + (Size) c * model->width, model->width, &row, model->name);
	return finite_scores(model);
}

Datum
penstock_predict(PG_FUNCTION_ARGS)
{
	Model	   *model = model_for(fcinfo);

	if (model->loss == LOSS_SOFTMAX)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a softmax model has a score for each class"),
				 errhint("Use penstock.predict_class or penstock.predict_probabilities.")));
	if (!score_row(fcinfo, model))
		PG_RETURN_NULL();
	PG_RETURN_FLOAT8((double) model->scores[0]);
}

Datum
penstock_predict_class(PG_FUNCTION_ARGS)
{
	Model	   *model = model_for(fcinfo);
	uint32		best = 0;

	if (model->loss == LOSS_SQUARED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a linear model has no classes"), errhint("Use penstock.predict.")));
	if (!score_row(fcinfo, model))
		PG_RETURN_NULL();
	if (model->loss == LOSS_SOFTMAX)
	{
		for (uint32 c = 1; c < model->outputs; c++)
			if (model->scores[c] > model->scores[best])
				best = c;
	}
	else
		best = model->scores[0] > 0;
	PG_RETURN_DATUM(PointerGetDatum(DatumGetTextPCopy(model->classes[best])));
}

Datum
penstock_predict_probabilities(PG_FUNCTION_ARGS)
{
	Model	   *model = model_for(fcinfo);
	Datum	   *out;
	double		sum = 0,
				top;

	if (model->loss != LOSS_SOFTMAX && model->loss != LOSS_LOGISTIC)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a model of kind %s has no probabilities", model_name(model->loss))));
	if (!score_row(fcinfo, model))
		PG_RETURN_NULL();
	out = palloc(sizeof(Datum) * model->class_count);
	if (model->loss == LOSS_LOGISTIC)
	{
		out[0] = Float8GetDatum(sigmoid(-(double) model->scores[0]));
		out[1] = Float8GetDatum(sigmoid(model->scores[0]));
	}
	else
	{
		top = model->scores[0];
		for (uint32 c = 1; c < model->outputs; c++)
			top = Max(top, model->scores[c]);
		for (uint32 c = 0; c < model->outputs; c++)
			sum += exp(model->scores[c] - top);
		for (uint32 c = 0; c < model->outputs; c++)
			out[c] = Float8GetDatum(exp(model->scores[c] - top) / sum);
	}
	PG_RETURN_ARRAYTYPE_P(construct_array(out, model->class_count, FLOAT8OID, sizeof(float8), FLOAT8PASSBYVAL,
										  TYPALIGN_DOUBLE));
}
