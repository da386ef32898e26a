/*
 * planner.c: puts SGD, TupleShuffle and BlockShuffle in the place of the aggregate penstock.sgd.
 *
 * The query is planned as any other, so the executor checks privileges, and the filters of row-level security are among
 * those of the scan. Heap tables and their partitions are read in blocks; what else a query may be is planned by the
 * server, and its rows are shuffled in the buffer alone.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/planner.h"
#include "optimizer/restrictinfo.h"
#include "optimizer/tlist.h"
#include "parser/parsetree.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "penstock.h"

/* Epochs of a plan whose options are not known: it costs so much that the server plans anew for each value. */
#define NEVER 1e12

static create_upper_paths_hook_type previous_hook = NULL;

static Plan *plan_sgd(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses, List *plans);
static Plan *plan_tuple_shuffle(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses,
								List *plans);
static Plan *plan_block_shuffle(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses,
								List *plans);

static const CustomPathMethods sgd_path = {.CustomName = "SGD",.PlanCustomPath = plan_sgd};
static const CustomPathMethods tuple_shuffle_path = {.CustomName = "TupleShuffle",.PlanCustomPath = plan_tuple_shuffle};
static const CustomPathMethods block_shuffle_path = {.CustomName = "BlockShuffle",.PlanCustomPath = plan_block_shuffle};

/* Whether a function is an aggregate of ours of that name. */
static bool
is_ours(Oid function, const char *wanted)
{
	char	   *name,
			   *schema;

	if (function < FirstNormalObjectId)
		return false;
	name = get_func_name(function);
	if (name == NULL || strcmp(name, wanted) != 0)
		return false;
	schema = get_namespace_name(get_func_namespace(function));
	return schema != NULL && strcmp(schema, "penstock") == 0;
}

static CustomPath *
make_path(RelOptInfo *rel, PathTarget *target, const CustomPathMethods *methods, List *children, double rows, Cost cost)
{
	CustomPath *path = makeNode(CustomPath);

	path->path.pathtype = T_CustomScan;
	path->path.parent = rel;
	path->path.pathtarget = target;
	path->path.rows = rows;
	path->path.startup_cost = 0;
	path->path.total_cost = cost;
#if PG_VERSION_NUM >= 150000
	path->flags = CUSTOMPATH_SUPPORT_PROJECTION;
#endif
	path->custom_paths = children;
	path->methods = methods;
	return path;
}

/* Whether a relation of the query is a table whose pages can be read as we do. */
static bool
is_heap(PlannerInfo *root, RelOptInfo *rel)
{
	RangeTblEntry *entry;
	HeapTuple	tuple;
	bool		heap;

	if (rel->reloptkind != RELOPT_BASEREL && rel->reloptkind != RELOPT_OTHER_MEMBER_REL)
		return false;
	entry = planner_rt_fetch(rel->relid, root);
	if (entry->rtekind != RTE_RELATION || entry->tablesample != NULL || rel->fdwroutine != NULL)
		return false;
	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(entry->relid));
	if (!HeapTupleIsValid(tuple))
		return false;
	heap = ((Form_pg_class) GETSTRUCT(tuple))->relam == HEAP_TABLE_AM_OID;
	ReleaseSysCache(tuple);
	return heap;
}

/* Returns a path that reads the same rows in blocks, or NULL where they are no table's. */
static Path *
in_blocks(PlannerInfo *root, Path *path)
{
	RelOptInfo *rel = path->parent;
	Path	   *inner = path;

	if (path->param_info != NULL)
		return NULL;
	while (IsA(inner, ProjectionPath) && ((ProjectionPath *) inner)->subpath->parent == rel)
		inner = ((ProjectionPath *) inner)->subpath;
	if (IsA(inner, AppendPath) || IsA(inner, MergeAppendPath))
	{
		List	   *from = IsA(inner, AppendPath) ? ((AppendPath *) inner)->subpaths : ((MergeAppendPath *) inner)->subpaths,
				   *children = NIL;
		ListCell   *cell;

		/* Where a projection stands above, the children's rows are not yet what is wanted. */
		if (from == NIL || inner != path)
			return NULL;
		foreach(cell, from)
		{
			Path	   *child = in_blocks(root, lfirst(cell));

			if (child == NULL)
				return NULL;
			/* Partitions of partitions are drawn from as if they were all at one level. */
			if (((CustomPath *) child)->custom_paths)
				children = list_concat(children, ((CustomPath *) child)->custom_paths);
			else
				children = lappend(children, child);
		}
		return (Path *) make_path(rel, path->pathtarget, &block_shuffle_path, children, path->rows, path->total_cost);
	}
	if (!is_heap(root, rel) || planner_rt_fetch(rel->relid, root)->relkind == RELKIND_PARTITIONED_TABLE)
		return NULL;
	return (Path *) make_path(rel, path->pathtarget, &block_shuffle_path, NIL, path->rows,
							  seq_page_cost * rel->pages + cpu_tuple_cost * rel->tuples);
}

/* An Append without subpaths reads nothing: `WHERE false`, or no partitions. */
static Path *
source_of(PlannerInfo *root, RelOptInfo *input)
{
	Path	   *cheapest = input->cheapest_total_path;
	ListCell   *cell;
	Path	   *found = in_blocks(root, cheapest);

	/* Another path may be an Append where the cheapest one is something else. */
	foreach(cell, input->pathlist)
	{
		if (found != NULL)
			break;
		found = in_blocks(root, lfirst(cell));
	}
	return found ? found : cheapest;
}

static Oid
argument_type(const Aggref *aggregate, int place)
{
	return exprType((Node *) ((TargetEntry *) list_nth(aggregate->args, place))->expr);
}

static bool
is_sparse(const Aggref *aggregate)
{
	return argument_type(aggregate, 0) == INT4ARRAYOID;
}

/*
 * Checks that an aggregate is one that the nodes can stand for, and returns its options: "" where they are a parameter of a
 * plan for all values of it.
 */
static char *
checked_options(PlannerInfo *root, Aggref *aggregate)
{
	int			count = list_length(aggregate->args),
				sparse = is_sparse(aggregate);
	TargetEntry *last = llast(aggregate->args);
	Query	   *query = root->parse;

	if (aggregate->aggfilter || aggregate->aggdistinct || aggregate->aggorder)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("penstock.sgd takes no FILTER, DISTINCT or ORDER BY"),
				 errhint("Use WHERE, and the option \"shuffle\".")));
	if (query->groupClause || query->groupingSets || query->havingQual)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("penstock.sgd learns one model: there can be no GROUP BY or HAVING beside it"),
				 errhint("Use penstock.fit, which learns one for each group.")));
	if (count < 3 + sparse || count > 4 + sparse
		|| argument_type(aggregate, sparse) != FLOAT4ARRAYOID || argument_type(aggregate, sparse + 1) != FLOAT4OID
		|| (count == 4 + sparse && argument_type(aggregate, sparse + 2) != FLOAT4OID))
		elog(ERROR, "the aggregate penstock.sgd is not as this library knows it");
	if (IsA(last->expr, Param) && ((Param *) last->expr)->paramkind == PARAM_EXTERN)
		return "";
	if (!IsA(last->expr, Const) || ((Const *) last->expr)->constisnull)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the options of penstock.sgd must be a constant"),
				 errhint("Write them into the query: '{\"model\": \"svm\"}'.")));
	return TextDatumGetCString(((Const *) last->expr)->constvalue);
}

static bool
learns(Node *node, void *unused)
{
	if (node == NULL)
		return false;
	if (IsA(node, Aggref) && is_ours(((Aggref *) node)->aggfnoid, "sgd"))
		return true;
	return expression_tree_walker(node, learns, unused);
}

/*
 * The server takes it that a subquery of aggregates gives one row, and would stop a join after the first epoch. So a
 * subquery of ours may not be joined with anything.
 */
static void
refuse_join(PlannerInfo *parent)
{
	ListCell   *cell;

	if (parent == NULL ||
		(list_length(parent->parse->jointree->fromlist) == 1 && IsA(linitial(parent->parse->jointree->fromlist), RangeTblRef)))
		return;
	foreach(cell, parent->parse->rtable)
	{
		RangeTblEntry *entry = lfirst(cell);

		if (entry->rtekind == RTE_SUBQUERY && entry->subquery != NULL && entry->subquery->hasAggs &&
			learns((Node *) entry->subquery->targetList, NULL))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("penstock.sgd gives a row for each epoch, and its query cannot be joined with others"),
					 errhint("Put it into a WITH clause: WITH epochs AS MATERIALIZED (SELECT penstock.sgd(...) FROM t).")));
	}
}

/*
 * penstock.fit keeps the rows of its group. Sorted, one group's are there at a time; in a hash table those of all groups would be.
 */
static void
leave_sorted(RelOptInfo *output)
{
	List	   *kept = NIL;
	ListCell   *cell;

	foreach(cell, output->pathlist)
	{
		Path	   *path = lfirst(cell);

		while (IsA(path, ProjectionPath))
			path = ((ProjectionPath *) path)->subpath;
		if (IsA(path, AggPath) ? ((AggPath *) path)->aggstrategy != AGG_HASHED : !IsA(path, GroupingSetsPath))
			kept = lappend(kept, lfirst(cell));
	}
	if (kept == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("penstock.fit needs its groups sorted, which these cannot be"),
				 errhint("Group by columns that can be ordered, without grouping sets.")));
	output->pathlist = kept;
}

static void
add_paths(PlannerInfo *root, UpperRelationKind stage, RelOptInfo *input, RelOptInfo *output, void *extra)
{
	Aggref	   *found = NULL;
	bool		others = false,
				fits = false;
	ListCell   *cell;
	List	   *aggregates;
	char	   *json;
	Path	   *source;
	CustomPath *path;
	double		rows,
				epochs = NEVER;

	if (previous_hook)
		previous_hook(root, stage, input, output, extra);
	if (stage != UPPERREL_GROUP_AGG || !root->parse->hasAggs)
		return;
	aggregates = pull_var_clause((Node *) output->reltarget->exprs,
								 PVC_INCLUDE_AGGREGATES | PVC_RECURSE_WINDOWFUNCS | PVC_INCLUDE_PLACEHOLDERS);
	foreach(cell, aggregates)
	{
		Node	   *node = lfirst(cell);

		if (!IsA(node, Aggref))
			continue;
		if (is_ours(((Aggref *) node)->aggfnoid, "sgd") && (found == NULL || equal(found, node)))
			found = (Aggref *) node;
		else
			others = true;
		fits |= is_ours(((Aggref *) node)->aggfnoid, "fit");
	}
	if (fits)
		leave_sorted(output);
	if (found == NULL)
		return;
	if (others)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("penstock.sgd must be the only aggregate of its query")));
	refuse_join(root->parent_root);
	json = checked_options(root, found);
	if (*json)
	{
		Options    *options = read_options(json);

		require_single(options);
		epochs = options->epochs;
	}
	source = source_of(root, input);
	rows = Max(source->rows, 1);
	path = make_path(input, source->pathtarget, &tuple_shuffle_path, list_make1(source), rows,
					 source->total_cost + rows * cpu_operator_cost);
	path->custom_private = list_make2(makeString(json), copyObject(found));
	/* The node below SGD belongs to the upper relation: no filter of the table is its own. */
	path->path.parent = output;
	path = make_path(output, output->reltarget, &sgd_path, list_make1(path), epochs,
					 (path->path.total_cost + rows * cpu_operator_cost) * epochs);
	path->custom_private = list_make2(makeString(json), copyObject(found));
	output->pathlist = list_make1(path);
	output->partial_pathlist = NIL;
}

void
planner_install(void)
{
	previous_hook = create_upper_paths_hook;
	create_upper_paths_hook = add_paths;
}

static CustomScan *
make_scan(CustomPath *path, List *tlist, const CustomScanMethods *methods, List *plans)
{
	CustomScan *scan = makeNode(CustomScan);

	scan->scan.plan.targetlist = tlist;
	scan->flags = path->flags;
	scan->custom_plans = plans;
	scan->methods = methods;
	return scan;
}

static Plan *
plan_sgd(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses, List *plans)
{
	CustomScan *scan = make_scan(path, tlist, &sgd_methods, plans);
	Aggref	   *aggregate = lsecond(path->custom_private);

	scan->custom_private = list_make1(linitial(path->custom_private));
	/* What the node gives is the aggregate's value; expressions over it are evaluated on top. */
	scan->custom_scan_tlist = list_make1(makeTargetEntry((Expr *) copyObject(aggregate), 1, pstrdup("sgd"), false));
	return (Plan *) scan;
}

static Plan *
plan_tuple_shuffle(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses, List *plans)
{
	CustomScan *scan = make_scan(path, tlist, &tuple_shuffle_methods, plans);
	Aggref	   *aggregate = lsecond(path->custom_private);
	int			count = list_length(aggregate->args) - 1;

	scan->custom_private = list_make2(linitial(path->custom_private), makeInteger(is_sparse(aggregate)));
	scan->custom_scan_tlist = copyObject(((Plan *) linitial(plans))->targetlist);
	for (int i = 0; i < count; i++)
		scan->custom_exprs = lappend(scan->custom_exprs,
									 copyObject(((TargetEntry *) list_nth(aggregate->args, i))->expr));
	return (Plan *) scan;
}

static Plan *
plan_block_shuffle(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *tlist, List *clauses, List *plans)
{
	CustomScan *scan = make_scan(path, tlist, &block_shuffle_methods, plans);

	if (plans != NIL)
		scan->custom_scan_tlist = copyObject(tlist);
	else
	{
		scan->scan.scanrelid = rel->relid;
		scan->scan.plan.qual = extract_actual_clauses(clauses, false);
	}
	return (Plan *) scan;
}
