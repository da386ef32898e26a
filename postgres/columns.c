/*
 * columns.c: says what columns a query has, without running it; a domain is what it is over.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/plancache.h"
#include "utils/tuplestore.h"

#include "catalogue.h"
#include "penstock.h"

PG_FUNCTION_INFO_V1(penstock_columns);

/* penstock.columns(query text, path text) returns table (name text, type regtype) */
Datum
penstock_columns(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	char	   *query = text_to_cstring(PG_GETARG_TEXT_PP(0)),
			   *path;
	int			level;
	MemoryContext before;
	Tuplestorestate *store;
	TupleDesc	type;
	List	   *sources;
	TupleDesc	columns;
	SPIPlanPtr	plan;

	if (PG_NARGS() != 2)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the functions of this database are older than the installed library; run: ALTER EXTENSION penstock UPDATE")));
	path = text_to_cstring(PG_GETARG_TEXT_PP(1));
	if (result == NULL || !IsA(result, ReturnSetInfo) || !(result->allowedModes & SFRM_Materialize))
		elog(ERROR, "penstock.columns must be called in FROM");
	before = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
	if (get_call_result_type(fcinfo, NULL, &type) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "penstock.columns must return rows");
	type = CreateTupleDescCopy(type);
	store = tuplestore_begin_heap(false, false, work_mem);
	result->returnMode = SFRM_Materialize;
	result->setResult = store;
	result->setDesc = type;
	MemoryContextSwitchTo(before);

	SPI_connect();
	level = path_set(path);
	plan = SPI_prepare(query, 0, NULL);
	path_restore(level);
	if (plan == NULL)
		elog(ERROR, "the query could not be read: %s", SPI_result_code_string(SPI_result));
	sources = SPI_plan_get_plan_sources(plan);
	columns = list_length(sources) == 1 ? ((CachedPlanSource *) linitial(sources))->resultDesc : NULL;
	if (columns == NULL || !SPI_is_cursor_plan(plan))
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("a training needs one query that gives rows, such as SELECT * FROM t")));
	for (int i = 0; i < columns->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(columns, i);
		bool		nulls[2] = {false, false};
		Datum		values[2];

		if (column->attisdropped)
			continue;
		values[0] = CStringGetTextDatum(NameStr(column->attname));
		values[1] = ObjectIdGetDatum(getBaseType(column->atttypid));
		tuplestore_putvalues(store, type, values, nulls);
	}
	SPI_finish();
	return (Datum) 0;
}
