/*
 * group_keys.h: the groups of a model, found by the rows' own columns.
 */
#ifndef PENSTOCK_GROUP_KEYS_H
#define PENSTOCK_GROUP_KEYS_H

#include "access/htup.h"
#include "lib/stringinfo.h"
#include "utils/jsonb.h"

#include "texts.h"

/* What values of a column are compared as; penstock.sql.stored_groups has the same words. */
typedef enum KeyKind
{
	KEY_TEXT,
	KEY_INTEGER,
	KEY_BOOLEAN,
	KEY_DATE,
	KEY_TIMESTAMP,
	KEY_TIME,
	KEY_FLOAT,
	KEY_KINDS
} KeyKind;

typedef struct KeyColumn
{
	char	   *name;
	KeyKind		kind;
	int			place;			/* in rows of the type below */
	Oid			type;			/* that a domain is over */
	FmgrInfo	output;
} KeyColumn;

typedef struct GroupKeys
{
	MemoryContext context;
	int			column_count;
	KeyColumn  *columns;
	uint32		count;			/* groups */
	bool		pooled;			/* whether rows of other groups have a model */
	Texts	   *keys;			/* values of all columns as bytes, numbered as the models are */
	StringInfoData key;
	Oid			type;			/* of the last row */
	int32		modifier;
	TupleDesc	row;
} GroupKeys;

/* Reads the part "groups" of a model's header; NULL where it is not sound. */
extern GroupKeys *group_keys_read(MemoryContext context, Jsonb *groups);

/* Returns the place of a row's group, -1 where it has no model. */
extern int32 group_keys_find(GroupKeys *keys, HeapTupleHeader row);

#endif							/* PENSTOCK_GROUP_KEYS_H */
