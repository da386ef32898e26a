/*
 * values.h: stored values of any type as what features are made of: a number, a moment or a text.
 */
#ifndef PENSTOCK_VALUES_H
#define PENSTOCK_VALUES_H

#include "postgres.h"

#include "fmgr.h"

typedef enum Form
{
	FORM_NUMBER,
	FORM_MOMENT,
	FORM_TEXT
} Form;

typedef struct Value
{
	bool		missing;
	Form		form;
	double		number;
	int64		moment;			/* microseconds since 1970, in UTC */
	const char *text;			/* not ended by a zero */
	uint32		size;
} Value;

/* Reads values of one type. */
typedef struct Reader
{
	Oid			type;			/* that a domain is over */
	bool		varlena;
	FmgrInfo	output;			/* of types that are text to Penstock */
} Reader;

extern void reader_start(Reader *reader, Oid type, MemoryContext context);
extern void read_value(Reader *reader, Datum datum, bool isnull, Value *value);

/* Reads a value of a category, or one to be hashed, as its text; `column` is for the error where there is no one text for it. */
extern void read_text(Reader *reader, Datum datum, bool isnull, const char *column, Value *value);

/* Texts as numbers, and as dates in ISO 8601; false where they are none. */
extern bool parse_number(const char *text, uint32 size, double *number);
extern bool parse_moment(const char *text, uint32 size, int64 *moment, bool *zoned);

#define DAY_MICROSECONDS INT64CONST(86400000000)

typedef enum DatePart
{
	WHOLE_DATE,
	DATE_MONTH,					/* from 1 */
	DATE_WEEKDAY,				/* 1 is Monday */
	DATE_HOUR
} DatePart;

extern int	date_part_of(int64 moment, DatePart part);
extern double days_of(int64 moment);

#endif							/* PENSTOCK_VALUES_H */
