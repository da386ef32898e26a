/*
 * penstock.c: the library's entry, and the type of options.
 *
 * The planner's hook must be there before a query with penstock.sgd is planned. The support function of its transition
 * sees to that: the planner asks it for the cost of the aggregate, which loads this library, before it asks the hooks.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"

#include "penstock.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

PG_FUNCTION_INFO_V1(penstock_options_in);
PG_FUNCTION_INFO_V1(penstock_options_out);
PG_FUNCTION_INFO_V1(penstock_sgd_support);
PG_FUNCTION_INFO_V1(penstock_sgd_unplanned);

void
_PG_init(void)
{
	RegisterCustomScanMethods(&sgd_methods);
	RegisterCustomScanMethods(&tuple_shuffle_methods);
	RegisterCustomScanMethods(&block_shuffle_methods);
	planner_install();
}

/* penstock.options is JSON that has been checked, kept as it was written. */
Datum
penstock_options_in(PG_FUNCTION_ARGS)
{
	char	   *json = PG_GETARG_CSTRING(0);

	read_options(json);
	PG_RETURN_TEXT_P(cstring_to_text(json));
}

Datum
penstock_options_out(PG_FUNCTION_ARGS)
{
	PG_RETURN_CSTRING(text_to_cstring(PG_GETARG_TEXT_PP(0)));
}

Datum
penstock_sgd_support(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(NULL);	/* it has no answers; to have been called is enough */
}

/* The aggregate's transition, never reached when the planner has put its nodes in the aggregate's place. */
Datum
penstock_sgd_unplanned(PG_FUNCTION_ARGS)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("penstock.sgd is no window function"),
			 errhint("Leave out OVER; penstock.train does all of it for you.")));
	PG_RETURN_NULL();
}
