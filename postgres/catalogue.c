/*
 * catalogue.c: checks the table of models before it is used.
 *
 * Whoever owns a table, or may put a trigger on it, can have code run with the rights of those who write to it; a view, a rule
 * or a policy does the same to those who read. The table is not a member of the extension, as models outlive it, so it may have
 * been made by anyone. It is used only where nothing on it can run code, and where its owner is to be trusted: a superuser, the
 * caller, or for other callers a role that they belong to or the owner of the database.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_database.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/primnodes.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/reltrigger.h"
#include "utils/syscache.h"

#include "catalogue.h"

PG_FUNCTION_INFO_V1(penstock_checked_catalogue);

static const struct
{
	const char *name;
	Oid			type;
}			columns[] = {
	{"name", TEXTOID}, {"kind", TEXTOID}, {"outputs", INT4OID}, {"width", INT8OID}, {"coef", FLOAT4ARRAYOID},
	{"intercept", FLOAT4ARRAYOID}, {"header", JSONOID}, {"format", INT4OID}, {"created_at", TIMESTAMPTZOID},
	{"penstock_version", TEXTOID},
};

#define MADE 9					/* the column whose default is now() */

int
path_set(const char *path)
{
	int			level = NewGUCNestLevel();

	set_config_option("search_path", path ? path : "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0,
					  false);
	return level;
}

void
path_restore(int level)
{
	AtEOXact_GUC(true, level);
}

static Oid
database_owner(void)
{
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	Oid			owner = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		owner = ((Form_pg_database) GETSTRUCT(tuple))->datdba;
		ReleaseSysCache(tuple);
	}
	return owner;
}

/* A superuser is a member of every role, which is no reason to trust it. */
static bool
is_trusted(Oid owner)
{
	Oid			user = GetUserId();

	if (superuser_arg(owner) || owner == user)
		return true;
	return !superuser_arg(user) && (is_member_of_role_nosuper(user, owner) || owner == database_owner());
}

static bool
has_own_triggers(Relation table)
{
	for (int i = 0; table->trigdesc && i < table->trigdesc->numtriggers; i++)
		if (!table->trigdesc->triggers[i].tgisinternal)
			return true;
	return false;
}

/* Whether columns are as Penstock makes them, and nothing is computed as a row is written. */
static bool
has_other_columns(Relation table)
{
	TupleDesc	type = RelationGetDescr(table);
	TupleConstr *constraints = type->constr;

	if (type->natts != lengthof(columns))
		return true;
	for (int i = 0; i < lengthof(columns); i++)
	{
		Form_pg_attribute column = TupleDescAttr(type, i);

		if (column->attisdropped || strcmp(NameStr(column->attname), columns[i].name) != 0 ||
			column->atttypid != columns[i].type || column->attgenerated || column->attidentity)
			return true;
	}
	if (constraints == NULL)
		return false;
	for (int i = 0; i < constraints->num_defval; i++)
	{
		Node	   *value = stringToNode(constraints->defval[i].adbin);

		if (constraints->defval[i].adnum != MADE || !IsA(value, FuncExpr) || ((FuncExpr *) value)->funcid != F_NOW)
			return true;
	}
	return constraints->num_check > 0;
}

static bool
has_computed_index(Relation table)
{
	List	   *indexes = RelationGetIndexList(table);
	ListCell   *cell;
	bool		computed = false;

	foreach(cell, indexes)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);

		computed |= RelationGetIndexExpressions(index) != NIL || RelationGetIndexPredicate(index) != NIL;
		index_close(index, AccessShareLock);
	}
	return computed;
}

/* Says what on the table could run code of its owner; NULL where nothing does. */
static const char *
found_on(Relation table)
{
	Oid			oid = RelationGetRelid(table);

	if (table->rd_rel->relkind != RELKIND_RELATION)
		return "it is not a plain table";
	if (table->rd_rel->relispartition || has_superclass(oid) || find_inheritance_children(oid, NoLock) != NIL)
		return "it inherits, or is inherited from";
	if (has_own_triggers(table))
		return "it has a trigger";
	if (table->rd_rules != NULL)
		return "it has a rule";
	if (table->rd_rel->relrowsecurity)
		return "it has row-level security";
	if (has_other_columns(table))
		return "its columns, defaults or checks are not those that Penstock makes";
	if (has_computed_index(table))
		return "it has an index over an expression";
	return NULL;
}

Oid
catalogue_checked(LOCKMODE lock, bool any_owner)
{
	Oid			schema = get_namespace_oid("penstock", true),
				oid = OidIsValid(schema) ? get_relname_relid("models", schema) : InvalidOid,
				owner;
	Relation	table;
	const char *why;

	if (!OidIsValid(oid))
		return InvalidOid;
	table = relation_open(oid, lock);
	why = found_on(table);
	owner = table->rd_rel->relowner;
	relation_close(table, NoLock);	/* locked to the end of the transaction: it stays as it was found */
	if (why != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("penstock.models is not used: %s", why),
				 errdetail("Code that stands on a table runs with the rights of whoever uses the table."),
				 errhint("Have a superuser look at it and remove that, or drop the table: penstock.make_catalogue() makes a sound one.")));
	if (!any_owner && !is_trusted(owner))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("penstock.models is not used: it belongs to \"%s\"", GetUserNameFromId(owner, true)),
				 errdetail("The owner of a table can have code run with the rights of whoever uses the table."),
				 errhint("Have a superuser run: ALTER TABLE penstock.models OWNER TO CURRENT_USER;")));
	return oid;
}

Datum
penstock_checked_catalogue(PG_FUNCTION_ARGS)
{
	Oid			oid = catalogue_checked(RecoveryInProgress() || XactReadOnly ? AccessShareLock : RowExclusiveLock,
										PG_GETARG_BOOL(0));

	if (!OidIsValid(oid))
		PG_RETURN_NULL();
	PG_RETURN_OID(oid);
}
