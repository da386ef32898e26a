/*
 * options.c: reads penstock.options, by the names that the shell `penstock sql` has for them.
 *
 * What is not known or out of bounds is refused with what would do.
 */
#include "postgres.h"

#include <float.h>
#include <math.h>

#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"
#include "utils/varlena.h"

#include "penstock.h"

static const char *const models[] = {"logistic", "svm", "linear", "softmax"};
static const char *const shuffles[] = {"corgipile", "block-only", "none"};
static const char *const rates[] = {"exponential", "inverse-scaling", "constant"};
static const char *const nulls[] = {"error", "skip"};

static const struct
{
	const char *unit;
	double		bytes;
}			units[] = {
	{"", 1}, {"b", 1},
	{"k", 1e3}, {"kb", 1e3}, {"m", 1e6}, {"mb", 1e6}, {"g", 1e9}, {"gb", 1e9}, {"t", 1e12}, {"tb", 1e12},
	{"kib", 1024.0}, {"mib", 1048576.0}, {"gib", 1073741824.0}, {"tib", 1099511627776.0},
};

static const char *const known[] = {
	"batch_size", "block_size", "buffer_size", "classes", "decay", "epochs", "exclude", "features", "intercept", "l1", "l2",
	"label", "learning_rate", "max_epoch_num", "memory", "model", "nulls", "outputs", "power", "rate", "read_only", "replace",
	"seed", "shuffle",
};

const char *
model_name(Loss loss)
{
	return models[loss];
}

const char *
shuffle_name(Shuffle shuffle)
{
	return shuffles[shuffle];
}

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

NEVER_RETURNS static void
refuse(const char *name, const JsonbValue *value, const char *wanted)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("option \"%s\" must be %s; it is %s", name, wanted, shown(value))));
}

NEVER_RETURNS static void
refuse_name(const char *name)
{
	const char *nearest = NULL;
	int			least = 3;

	for (int i = 0; i < lengthof(known); i++)
	{
		int			apart = varstr_levenshtein(name, Min(strlen(name), 100), known[i], strlen(known[i]), 1, 1, 1, true);

		if (apart < least)
		{
			least = apart;
			nearest = known[i];
		}
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("there is no option \"%s\"", name),
			 nearest ? errhint("Did you mean \"%s\"?", nearest)
			 : errhint("Choose from: batch_size, block_size, buffer_size, classes, decay, epochs, intercept, l1, l2, "
					   "learning_rate, nulls, power, rate, seed, shuffle; penstock.train also has label, features, exclude, "
					   "replace.")));
}

/* Refuses two names of one option. */
static void
refuse_both(Jsonb *read, const char *name, const char *other)
{
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(&read->root, name, strlen(name), &value) != NULL &&
		getKeyJsonValueFromContainer(&read->root, other, strlen(other), &value) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" and \"%s\" are one option; give one of them", name, other)));
}

static double
number(const char *name, const JsonbValue *value, double least, double most, const char *wanted)
{
	double		found;

	if (value->type != jbvNumeric)
		refuse(name, value, wanted);
	found = DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow, NumericGetDatum(value->val.numeric)));
	if (!(found >= least && found <= most))
		refuse(name, value, wanted);
	return found;
}

static double
whole(const char *name, const JsonbValue *value, double least, double most, const char *wanted)
{
	double		found = number(name, value, least, most, wanted);

	if (found != floor(found))
		refuse(name, value, wanted);
	return found;
}

static char *
text_of(const char *name, const JsonbValue *value, const char *wanted)
{
	if (value->type != jbvString)
		refuse(name, value, wanted);
	return pnstrdup(value->val.string.val, value->val.string.len);
}

static int
word(const char *name, const JsonbValue *value, const char *const *words, int count)
{
	StringInfoData wanted;
	char	   *found;

	initStringInfo(&wanted);
	appendStringInfoString(&wanted, "one of:");
	for (int i = 0; i < count; i++)
		appendStringInfo(&wanted, "%s %s", i ? "," : "", words[i]);
	found = text_of(name, value, wanted.data);
	for (int i = 0; i < count; i++)
		if (pg_strcasecmp(found, words[i]) == 0)
			return i;
	refuse(name, value, wanted.data);
}

/* Reads "10MB", "64KiB" or a plain number; a share such as "10%" only where there is a place for it. */
static int64
size_of(const char *name, const JsonbValue *value, double *share)
{
	const char *wanted = share ? "an amount of memory from 64kB to 16GB, such as \"64MB\" or \"10%\""
		: "a size from 8kB to 16GB, such as \"10MB\"";
	double		found,
				least = share ? 64e3 : 8e3;
	char	   *text,
			   *unit;

	if (value->type == jbvNumeric)
		return (int64) number(name, value, least, 17179869184.0, wanted);
	text = text_of(name, value, wanted);
	found = strtod(text, &unit);
	while (*unit == ' ')
		unit++;
	if (unit == text || !isfinite(found))
		refuse(name, value, wanted);
	if (share && strcmp(unit, "%") == 0)
	{
		if (!(found > 0 && found <= 100))
			refuse(name, value, wanted);
		*share = found / 100;
		return 0;
	}
	for (int i = 0; i < lengthof(units); i++)
	{
		if (pg_strcasecmp(unit, units[i].unit) == 0)
		{
			found *= units[i].bytes;
			if (!(found >= least && found <= 17179869184.0))
				refuse(name, value, wanted);
			return (int64) found;
		}
	}
	refuse(name, value, wanted);
}

static bool
flag(const char *name, const JsonbValue *value)
{
	bool		found;

	if (value->type == jbvBool)
		return value->val.boolean;
	if (value->type == jbvString && parse_bool_with_len(value->val.string.val, value->val.string.len, &found))
		return found;
	refuse(name, value, "true or false");
}

static void
read_classes(Options *options, const JsonbValue *value)
{
	const char *wanted = "an array of two or more numbers, each larger than the one before it";
	JsonbIterator *it;
	JsonbValue	item;
	JsonbIteratorToken token;

	if (value->type != jbvBinary || !JsonContainerIsArray(value->val.binary.data))
		refuse("classes", value, wanted);
	options->classes = palloc(sizeof(float) * Max(1, JsonContainerSize(value->val.binary.data)));
	it = JsonbIteratorInit(value->val.binary.data);
	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
	{
		if (token != WJB_ELEM)
			continue;
		options->classes[options->class_count++] = (float) number("classes", &item, -16777216, 16777216, wanted);
		if (options->class_count > 1 &&
			!(options->classes[options->class_count - 1] > options->classes[options->class_count - 2]))
			refuse("classes", value, wanted);
	}
	if (options->class_count < 2)
		refuse("classes", value, wanted);
}

static void
read_option(Options *options, const char *name, const JsonbValue *value)
{
	const char *positive = "a positive number, such as 0.1";
	const char *penalty = "zero or a positive number, such as 0.0001";

	if (strcmp(name, "model") == 0)
		options->loss = word(name, value, models, lengthof(models));
	else if (strcmp(name, "learning_rate") == 0)
		options->learning_rate = number(name, value, DBL_MIN, DBL_MAX, positive);
	else if (strcmp(name, "rate") == 0)
		options->rate = word(name, value, rates, lengthof(rates));
	else if (strcmp(name, "decay") == 0)
		options->decay = number(name, value, DBL_MIN, 1, "above 0 and at most 1, such as 0.95");
	else if (strcmp(name, "power") == 0)
		options->power = number(name, value, 0, DBL_MAX, "zero or more, such as 0.25");
	else if (strcmp(name, "epochs") == 0 || strcmp(name, "max_epoch_num") == 0)
		options->epochs = whole(name, value, 1, 1000000, "a whole number from 1 to 1000000");
	else if (strcmp(name, "batch_size") == 0)
		options->batch_size = whole(name, value, 1, 100000000, "a number of rows from 1 to 100000000");
	else if (strcmp(name, "l1") == 0)
		options->l1 = number(name, value, 0, DBL_MAX, penalty);
	else if (strcmp(name, "l2") == 0)
		options->l2 = number(name, value, 0, DBL_MAX, penalty);
	else if (strcmp(name, "intercept") == 0)
		options->intercept = flag(name, value);
	else if (strcmp(name, "shuffle") == 0)
		options->shuffle = word(name, value, shuffles, lengthof(shuffles));
	else if (strcmp(name, "seed") == 0)
		options->seed = whole(name, value, 0, 9007199254740992.0, "a whole number from 0 to 2^53");
	else if (strcmp(name, "block_size") == 0)
		options->block_size = size_of(name, value, NULL);
	else if (strcmp(name, "buffer_size") == 0 || strcmp(name, "memory") == 0)
		options->buffer_size = size_of(name, value, &options->buffer_share);
	else if (strcmp(name, "nulls") == 0)
		options->skip_nulls = word(name, value, nulls, lengthof(nulls)) == 1;
	else if (strcmp(name, "read_only") == 0)
		options->read_only = flag(name, value);
	else if (strcmp(name, "outputs") == 0)
		options->outputs = whole(name, value, 2, 10000, "a number of classes from 2 to 10000");
	else if (strcmp(name, "classes") == 0)
		read_classes(options, value);
	else
		refuse_name(name);
}

Options *
read_options(const char *json)
{
	Jsonb	   *read = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(json)));
	Options    *options = palloc0(sizeof(Options));
	JsonbIterator *it;
	JsonbValue	value;
	JsonbIteratorToken token;
	char	   *name = NULL;

	options->decay = 0.95;
	options->power = 0.25;
	options->epochs = 20;
	options->batch_size = 1;
	options->intercept = true;
	if (!JB_ROOT_IS_OBJECT(read))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("options must be a JSON object, such as {\"model\": \"svm\", \"epochs\": 5}")));
	refuse_both(read, "epochs", "max_epoch_num");
	refuse_both(read, "buffer_size", "memory");
	it = JsonbIteratorInit(&read->root);
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			name = pnstrdup(value.val.string.val, value.val.string.len);
		else if (token == WJB_VALUE && value.type != jbvNull)	/* null leaves what there is without the option */
			read_option(options, name, &value);
	}
	if (options->learning_rate == 0)	/* the squared loss has no bound on its slope, and wants smaller steps */
		options->learning_rate = options->loss == LOSS_SQUARED ? 0.01 : 0.1;
	if (options->loss == LOSS_SOFTMAX)
	{
		if (options->outputs == 0)
			options->outputs = options->class_count;
		if (options->outputs < 2 || (options->class_count && options->class_count != options->outputs))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("softmax needs \"outputs\", the number of classes, or \"classes\", all of them")));
	}
	else
	{
		if (options->outputs || (options->loss == LOSS_SQUARED && options->class_count))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"%s\" is not for %s models", options->outputs ? "outputs" : "classes",
							models[options->loss])));
		if (options->class_count && options->class_count != 2)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s models tell two classes apart, not %d", models[options->loss], options->class_count),
					 errhint("Use softmax for more than two.")));
		options->outputs = 1;
	}
	return options;
}
