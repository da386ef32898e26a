/*
 * option_values.c: reads the values of options: numbers, words, sizes, flags; refuses others with what would do.
 */
#include "postgres.h"

#include <math.h>

#include "utils/builtins.h"
#include "utils/numeric.h"

#include "option_values.h"

static const struct
{
	const char *unit;
	double		bytes;
}			units[] = {
	{"", 1}, {"b", 1},
	{"k", 1e3}, {"kb", 1e3}, {"m", 1e6}, {"mb", 1e6}, {"g", 1e9}, {"gb", 1e9}, {"t", 1e12}, {"tb", 1e12},
	{"kib", 1024.0}, {"mib", 1048576.0}, {"gib", 1073741824.0}, {"tib", 1099511627776.0},
};

static char *
shown(const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvNumeric:
			return DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value->val.numeric)));
		case jbvString:
			return psprintf("\"%s\"", pnstrdup(value->val.string.val, value->val.string.len));
		case jbvBool:
			return value->val.boolean ? "true" : "false";
		case jbvBinary:
			return JsonbToCString(NULL, value->val.binary.data, value->val.binary.len);
		default:
			return "null";
	}
}

void
option_refuse(const char *name, const JsonbValue *value, const char *wanted)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("option \"%s\" must be %s; it is %s", name, wanted, shown(value))));
}

double
option_number(const char *name, const JsonbValue *value, double least, double most, const char *wanted)
{
	double		found;

	if (value->type != jbvNumeric)
		option_refuse(name, value, wanted);
	found = DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow, NumericGetDatum(value->val.numeric)));
	if (!(found >= least && found <= most))
		option_refuse(name, value, wanted);
	return found;
}

double
option_whole(const char *name, const JsonbValue *value, double least, double most, const char *wanted)
{
	double		found = option_number(name, value, least, most, wanted);

	if (found != floor(found))
		option_refuse(name, value, wanted);
	return found;
}

char *
option_text(const char *name, const JsonbValue *value, const char *wanted)
{
	if (value->type != jbvString)
		option_refuse(name, value, wanted);
	return pnstrdup(value->val.string.val, value->val.string.len);
}

int
option_word(const char *name, const JsonbValue *value, const char *const *words, int count)
{
	StringInfoData wanted;
	char	   *found;

	initStringInfo(&wanted);
	appendStringInfoString(&wanted, "one of:");
	for (int i = 0; i < count; i++)
		appendStringInfo(&wanted, "%s %s", i ? "," : "", words[i]);
	found = option_text(name, value, wanted.data);
	for (int i = 0; i < count; i++)
		if (pg_strcasecmp(found, words[i]) == 0)
			return i;
	option_refuse(name, value, wanted.data);
}

/* Reads "10MB", "64KiB" or a plain number; a share such as "10%" only where there is a place for it. */
int64
option_size(const char *name, const JsonbValue *value, double *share)
{
	const char *wanted = share ? "an amount of memory from 64kB to 16GB, such as \"64MB\" or \"10%\""
		: "a size from 8kB to 16GB, such as \"10MB\"";
	double		found,
				least = share ? 64e3 : 8e3;
	char	   *text,
			   *unit;

	if (value->type == jbvNumeric)
		return (int64) option_number(name, value, least, 17179869184.0, wanted);
	text = option_text(name, value, wanted);
	found = strtod(text, &unit);
	while (*unit == ' ')
		unit++;
	if (unit == text || !isfinite(found))
		option_refuse(name, value, wanted);
	if (share && strcmp(unit, "%") == 0)
	{
		if (!(found > 0 && found <= 100))
			option_refuse(name, value, wanted);
		*share = found / 100;
		return 0;
	}
	for (int i = 0; i < lengthof(units); i++)
	{
		if (pg_strcasecmp(unit, units[i].unit) == 0)
		{
			found *= units[i].bytes;
			if (!(found >= least && found <= 17179869184.0))
				option_refuse(name, value, wanted);
			return (int64) found;
		}
	}
	option_refuse(name, value, wanted);
}

bool
option_flag(const char *name, const JsonbValue *value)
{
	bool		found;

	if (value->type == jbvBool)
		return value->val.boolean;
	if (value->type == jbvString && parse_bool_with_len(value->val.string.val, value->val.string.len, &found))
		return found;
	option_refuse(name, value, "true or false");
}

bool
option_is_auto(const JsonbValue *value)
{
	return value->type == jbvString && value->val.string.len == 4 && pg_strncasecmp(value->val.string.val, "auto", 4) == 0;
}
