/*
 * values.c: reads stored values, after Penstock's columns/number.py, date.py and base.py.
 *
 * Numbers, booleans, times of the day and intervals are numbers; dates with and without a time are moments in UTC; all else is the text that
 * its type writes it as.
 */
#include "postgres.h"

#include <ctype.h>
#include <math.h>

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"

#include "penstock.h"
#include "values.h"

#define EPOCH_DAYS (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE)
#define NUMBER_MOST 500			/* bytes of a text that is a number */

void
reader_start(Reader *reader, Oid type, MemoryContext context)
{
	Oid			output;

	reader->type = getBaseType(type);
	getTypeOutputInfo(reader->type, &output, &reader->varlena);
	fmgr_info_cxt(output, &reader->output, context);
}

static void
require_finite(bool finite)
{
	if (!finite)
		ereport(ERROR,
			(errcode(ERRCODE_DATA_EXCEPTION),
			 errmsg("a date is infinite, and cannot be counted in days"),
			 errhint("Fill or remove such dates before training.")));
}

static void
set_text(Reader *reader, Datum datum, Value *value)
{
	value->form = FORM_TEXT;
	if (reader->type == TEXTOID || reader->type == VARCHAROID || reader->type == BPCHAROID)
	{
		struct varlena *text = PG_DETOAST_DATUM_PACKED(datum);

		value->text = VARDATA_ANY(text);
		value->size = reader->type == BPCHAROID ? bpchartruelen(VARDATA_ANY(text), VARSIZE_ANY_EXHDR(text)) : VARSIZE_ANY_EXHDR(text);
		return;
	}
	value->text = reader->type != BOOLOID ? OutputFunctionCall(&reader->output, datum) : DatumGetBool(datum) ? "true" : "false";
	value->size = strlen(value->text);
}

void
read_text(Reader *reader, Datum datum, bool isnull, const char *column, Value *value)
{
	value->missing = isnull;
	value->form = FORM_TEXT;
	switch (reader->type)
	{
		case FLOAT4OID:
		case FLOAT8OID:
		case NUMERICOID:
		case TIMEOID:
		case INTERVALOID:
		case DATEOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("column \"%s\" is %s, where text or whole numbers were learnt from", column, format_type_be(reader->type))));
	}
	if (!isnull)
		set_text(reader, datum, value);
}

/* As extract(epoch FROM …) has it: a year has 365.25 days, any other month 30. */
static double
interval_seconds(const Interval *interval)
{
	double		days;

#ifdef INTERVAL_NOT_FINITE
	if (INTERVAL_NOT_FINITE(interval))
		return get_float8_infinity();
#endif
	days = interval->month / MONTHS_PER_YEAR * 365.25 + interval->month % MONTHS_PER_YEAR * 30.0 + interval->day;

	return days * 86400.0 + interval->time / 1e6;
}

void
read_value(Reader *reader, Datum datum, bool isnull, Value *value)
{
	value->missing = isnull;
	value->form = FORM_NUMBER;
	if (isnull)
		return;
	switch (reader->type)
	{
		case BOOLOID:
			value->number = DatumGetBool(datum);
			break;
		case INT2OID:
			value->number = DatumGetInt16(datum);
			break;
		case INT4OID:
			value->number = DatumGetInt32(datum);
			break;
		case INT8OID:
			value->number = (double) DatumGetInt64(datum);
			break;
		case OIDOID:
			value->number = DatumGetObjectId(datum);
			break;
		case FLOAT4OID:
			value->number = DatumGetFloat4(datum);
			break;
		case FLOAT8OID:
			value->number = DatumGetFloat8(datum);
			break;
		case NUMERICOID:
			value->number = DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow, datum));
			break;
		case TIMEOID:
			value->number = (double) DatumGetTimeADT(datum) / 1e6;
			break;
		case INTERVALOID:
			value->number = interval_seconds(DatumGetIntervalP(datum));
			break;
		case DATEOID:
			value->form = FORM_MOMENT;
			require_finite(!DATE_NOT_FINITE(DatumGetDateADT(datum)));
			value->moment = ((int64) DatumGetDateADT(datum) + EPOCH_DAYS) * DAY_MICROSECONDS;
			break;
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			value->form = FORM_MOMENT;
			require_finite(!TIMESTAMP_NOT_FINITE(DatumGetTimestamp(datum)));
			value->moment = DatumGetTimestamp(datum) + EPOCH_DAYS * DAY_MICROSECONDS;
			break;
		default:
			set_text(reader, datum, value);
	}
	if (value->form == FORM_NUMBER && isnan(value->number))
		value->missing = true;
}

bool
parse_number(const char *text, uint32 size, double *number)
{
	static const char *const words[] = {"nan", "inf", "infinity"};
	char		room[NUMBER_MOST + 1];
	char	   *end,
			   *at = room;

	while (size > 0 && isspace((unsigned char) *text))
		text++, size--;
	while (size > 0 && isspace((unsigned char) text[size - 1]))
		size--;
	if (size == 0 || size > NUMBER_MOST)
		return false;
	memcpy(room, text, size);
	room[size] = '\0';
	if (*at == '-')
		at++;
	if (isalpha((unsigned char) *at))
	{
		bool		known = false;

		for (int i = 0; i < lengthof(words); i++)
			known |= pg_strcasecmp(at, words[i]) == 0;
		if (!known)
			return false;
	}
	else if (strspn(at, "0123456789.eE+-") != strlen(at) || *at == '+' || *at == '-')	/* strtod knows more, such as 0x10 */
		return false;
	*number = strtod(room, &end);
	return *end == '\0';
}

/* Reads exactly so many digits; -1 where there are others. */
static int
digits(const char **at, const char *end, int count)
{
	int			found = 0;

	if (end - *at < count)
		return -1;
	for (int i = 0; i < count; i++, (*at)++)
	{
		if (!isdigit((unsigned char) **at))
			return -1;
		found = found * 10 + **at - '0';
	}
	return found;
}

static bool
passes(const char **at, const char *end, char wanted)
{
	if (*at == end || **at != wanted)
		return false;
	(*at)++;
	return true;
}

/* Reads hh[:mm[:ss[.fraction]]] as microseconds; -1 where it is none. */
static int64
time_of_day(const char **at, const char *end)
{
	int			hour = digits(at, end, 2),
				minute = 0,
				second = 0;
	int64		fraction = 0;

	if (hour < 0 || hour > 23)
		return -1;
	if (passes(at, end, ':'))
	{
		minute = digits(at, end, 2);
		if (passes(at, end, ':'))
		{
			second = digits(at, end, 2);
			if (passes(at, end, '.'))
			{
				int			places = 0;

				for (; *at < end && isdigit((unsigned char) **at); (*at)++, places++)
					if (places < 6)
						fraction = fraction * 10 + **at - '0';
				if (places == 0 || places > 9)
					return -1;
				for (; places < 6; places++)
					fraction *= 10;
			}
		}
	}
	if (minute < 0 || minute > 59 || second < 0 || second > 59)
		return -1;
	return ((hour * 60 + minute) * INT64CONST(60) + second) * USECS_PER_SEC + fraction;
}

bool
parse_moment(const char *text, uint32 size, int64 *moment, bool *zoned)
{
	const char *at = text,
			   *end = text + size;
	int			year = digits(&at, end, 4),
				month = passes(&at, end, '-') ? digits(&at, end, 2) : -1,
				day = passes(&at, end, '-') ? digits(&at, end, 2) : -1;
	int64		time = 0;

	*zoned = false;
	if (year < 1 || month < 1 || month > 12 || day < 1 || day > day_tab[isleap(year)][month - 1])
		return false;
	if (at < end)
	{
		if (!passes(&at, end, ' ') && !passes(&at, end, 'T'))
			return false;
		time = time_of_day(&at, end);
		if (time < 0)
			return false;
		if (passes(&at, end, 'Z'))
			*zoned = true;
		else if (at < end && (*at == '+' || *at == '-'))
		{
			int			sign = *at++ == '-' ? 1 : -1,
						hours = digits(&at, end, 2),
						minutes = 0;

			if (at < end)
			{
				passes(&at, end, ':');
				minutes = digits(&at, end, 2);
			}
			if (hours < 0 || hours > 23 || minutes < 0 || minutes > 59)
				return false;
			*zoned = true;
			time += sign * (hours * 60 + minutes) * USECS_PER_MINUTE;
		}
		if (at != end)
			return false;
	}
	*moment = (int64) (date2j(year, month, day) - UNIX_EPOCH_JDATE) * DAY_MICROSECONDS + time;
	return true;
}

int
date_part_of(int64 moment, DatePart part)
{
	int64		day = moment / DAY_MICROSECONDS - (moment % DAY_MICROSECONDS < 0);
	int			year,
				month,
				of_month;

	if (part == DATE_HOUR)
		return (int) ((moment - day * DAY_MICROSECONDS) / USECS_PER_HOUR);
	if (part == DATE_WEEKDAY)
		return (j2day((int) day + UNIX_EPOCH_JDATE) + 6) % 7 + 1;
	j2date((int) day + UNIX_EPOCH_JDATE, &year, &month, &of_month);
	return month;
}

double
days_of(int64 moment)
{
	return (double) moment / DAY_MICROSECONDS;
}
