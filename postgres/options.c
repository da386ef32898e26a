/*
 * options.c: reads penstock.options, by the names that the shell `penstock sql` has for them.
 *
 * What is not known or out of bounds is refused with what would do.
 */
#include "postgres.h"

#include <float.h>

#include "utils/builtins.h"
#include "utils/varlena.h"

#include "option_values.h"

static const char *const models[] = {"logistic", "svm", "linear", "softmax"};
static const char *const shuffles[] = {"corgipile", "block-only", "none"};
static const char *const rates[] = {"auto", "exponential", "inverse-scaling", "constant"};
static const char *const nulls[] = {"error", "skip", "fill"};	/* the last one is of penstock.train */
static const char *const solvers[] = {"auto", "sgd", "exact", "lbfgs"};

static const char *const known[] = {
	"average", "batch_size", "block_size", "buffer_size", "class_weight", "classes", "decay", "epochs", "exclude", "features", "flags", "intercept", "judged",
	"l1", "l2", "label", "learning_rate", "max_epoch_num", "memory", "model", "names", "nulls", "other", "outputs", "power", "rate", "read_only",
	"replace", "seed", "shuffle", "solver", "standardize", "title", "unseen", "validation", "weight",
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
			 : errhint("Choose from: average, batch_size, block_size, buffer_size, class_weight, classes, decay, epochs, intercept, l1, "
					   "l2, learning_rate, nulls, power, rate, seed, shuffle, solver, standardize, validation; penstock.train also has label, "
					   "features, exclude, weight, replace; models of groups have unseen.")));
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

/* Reads an item of an array into its place. */
typedef void (*ReadItem) (void *place, const JsonbValue *item, const char *wanted);

/* Reads an array, of items of one size. */
static void *
read_array(const char *name, const JsonbValue *value, Size size, ReadItem read, int *count, const char *wanted)
{
	JsonbIterator *it;
	JsonbValue	item;
	JsonbIteratorToken token;
	char	   *items;

	if (value->type != jbvBinary || !JsonContainerIsArray(value->val.binary.data))
		option_refuse(name, value, wanted);
	items = palloc_extended(size * Max(1, JsonContainerSize(value->val.binary.data)), MCXT_ALLOC_HUGE);
	it = JsonbIteratorInit(value->val.binary.data);
	while ((token = JsonbIteratorNext(&it, &item, true)) != WJB_DONE)
		if (token == WJB_ELEM)
			read(items + size * (*count)++, &item, wanted);
	return items;
}

static void
read_class(void *place, const JsonbValue *item, const char *wanted)
{
	*(float *) place = (float) option_number("classes", item, -16777216, 16777216, wanted);
}

static void
read_weight(void *place, const JsonbValue *item, const char *wanted)
{
	*(float *) place = (float) option_number("class_weight", item, FLT_MIN, FLT_MAX, wanted);
}

static void
read_name(void *place, const JsonbValue *item, const char *wanted)
{
	*(char **) place = option_text("names", item, wanted);
}

static void
read_penalty(void *place, const JsonbValue *item, const char *wanted)
{
	*(double *) place = option_is_auto(item) ? -1 : option_number("l2", item, 0, DBL_MAX, wanted);
}

static void
read_flag(void *place, const JsonbValue *item, const char *wanted)
{
	*(uint32 *) place = (uint32) option_whole("flags", item, 0, PG_INT32_MAX, wanted);
}

static void
read_coefficient(void *place, const JsonbValue *item, const char *wanted)
{
	*(float *) place = (float) option_number("other", item, -FLT_MAX, FLT_MAX, wanted);
}

static void
read_classes(Options *options, const JsonbValue *value)
{
	const char *wanted = "an array of two or more numbers, each larger than the one before it";

	options->classes = read_array("classes", value, sizeof(float), read_class, &options->class_count, wanted);
	for (int i = 1; i < options->class_count; i++)
		if (!(options->classes[i] > options->classes[i - 1]))
			option_refuse("classes", value, wanted);
	if (options->class_count < 2)
		option_refuse("classes", value, wanted);
}

/* Reads "balanced", or a weight for each class; penstock.train makes these of weights by label. */
static void
read_class_weight(Options *options, const JsonbValue *value)
{
	const char *wanted = "\"balanced\", or positive numbers: of penstock.train by label, such as {\"yes\": 5}, else an array of one "
		"for each class";

	if (value->type == jbvString &&
		pg_strcasecmp(pnstrdup(value->val.string.val, value->val.string.len), "balanced") == 0)
	{
		options->balanced = true;
		return;
	}
	options->class_weights = read_array("class_weight", value, sizeof(float), read_weight, &options->weight_count, wanted);
	if (options->weight_count < 2)
		option_refuse("class_weight", value, wanted);
}

static void
read_names(Options *options, const JsonbValue *value)
{
	options->names = read_array("names", value, sizeof(char *), read_name, &options->name_count, "an array of the names of columns");
}

/* Reads several penalties, the best of which is chosen for each group. */
static void
read_penalties(Options *options, const JsonbValue *value)
{
	const char *wanted = "\"auto\", zero or a positive number, or an array of such, such as [1, 0.1, 0.01]";

	options->penalties = read_array("l2", value, sizeof(double), read_penalty, &options->penalty_count, wanted);
	if (options->penalty_count == 0 || options->penalty_count > 1000)
		option_refuse("l2", value, wanted);
}

static void
read_flags(Options *options, const JsonbValue *value)
{
	options->flags = read_array("flags", value, sizeof(uint32), read_flag, &options->flag_count,
								"an array of the places of features, from 0");
}

/* Reads the weights of a model that others are compared with. */
static void
read_other(Options *options, const JsonbValue *value)
{
	options->other = read_array("other", value, sizeof(float), read_coefficient, &options->other_count, "an array of weights");
}

static void
read_option(Options *options, const char *name, const JsonbValue *value)
{
	const char *positive = "\"auto\" or a positive number, such as 0.1";
	const char *penalty = "zero or a positive number, such as 0.0001";

	if (strcmp(name, "model") == 0)
		options->loss = option_word(name, value, models, lengthof(models));
	else if (strcmp(name, "learning_rate") == 0)
		options->learning_rate = option_is_auto(value) ? 0 : option_number(name, value, DBL_MIN, DBL_MAX, positive);
	else if (strcmp(name, "rate") == 0)
		options->rate = option_word(name, value, rates, lengthof(rates));
	else if (strcmp(name, "decay") == 0)
		options->decay = option_number(name, value, DBL_MIN, 1, "above 0 and at most 1, such as 0.95");
	else if (strcmp(name, "power") == 0)
		options->power = option_number(name, value, 0, DBL_MAX, "zero or more, such as 0.25");
	else if (strcmp(name, "epochs") == 0 || strcmp(name, "max_epoch_num") == 0)
	{
		options->epochs = option_whole(name, value, 1, 1000000, "a whole number from 1 to 1000000");
		options->epochs_given = true;
	}
	else if (strcmp(name, "batch_size") == 0)
		options->batch_size = option_whole(name, value, 1, 100000000, "a number of rows from 1 to 100000000");
	else if (strcmp(name, "l1") == 0)
		options->l1 = option_number(name, value, 0, DBL_MAX, penalty);
	else if (strcmp(name, "l2") == 0 && value->type == jbvBinary)
		read_penalties(options, value);
	else if (strcmp(name, "l2") == 0)
		options->l2 = option_is_auto(value) ? -1 : option_number(name, value, 0, DBL_MAX, psprintf("\"auto\", %s", penalty));
	else if (strcmp(name, "solver") == 0)
		options->solver = option_word(name, value, solvers, lengthof(solvers));
	else if (strcmp(name, "standardize") == 0)
		options->standardize = option_flag(name, value);
	else if (strcmp(name, "average") == 0)
		options->average = option_flag(name, value);
	else if (strcmp(name, "names") == 0)
		read_names(options, value);
	else if (strcmp(name, "title") == 0)
		options->title = option_text(name, value, "the name that penstock.progress has for the model");
	else if (strcmp(name, "flags") == 0)
		read_flags(options, value);
	else if (strcmp(name, "other") == 0)
		read_other(options, value);
	else if (strcmp(name, "judged") == 0)
		options->keep_judged = option_flag(name, value);
	else if (strcmp(name, "validation") == 0)
		options->validation = option_is_auto(value) ? -1
			: option_number(name, value, 0, 0.9, "\"auto\", or a share of the rows from 0, for none, to 0.9, such as 0.1");
	else if (strcmp(name, "intercept") == 0)
		options->intercept = option_flag(name, value);
	else if (strcmp(name, "shuffle") == 0)
		options->shuffle = option_word(name, value, shuffles, lengthof(shuffles));
	else if (strcmp(name, "seed") == 0)
		options->seed = option_whole(name, value, 0, 9007199254740992.0, "a whole number from 0 to 2^53");
	else if (strcmp(name, "block_size") == 0)
		options->block_size = option_size(name, value, NULL);
	else if (strcmp(name, "buffer_size") == 0 || strcmp(name, "memory") == 0)
		options->buffer_size = option_size(name, value, &options->buffer_share);
	else if (strcmp(name, "nulls") == 0)
		options->skip_nulls = option_word(name, value, nulls, lengthof(nulls)) == 1;
	else if (strcmp(name, "read_only") == 0)
		options->read_only = option_flag(name, value);
	else if (strcmp(name, "outputs") == 0)
		options->outputs = option_whole(name, value, 2, 10000, "a number of classes from 2 to 10000");
	else if (strcmp(name, "class_weight") == 0)
		read_class_weight(options, value);
	else if (strcmp(name, "classes") == 0)
		read_classes(options, value);
	else
		refuse_name(name);
}

/* Whether nothing is given that SGD alone has. */
static bool
is_open(const Options *options)
{
	return options->solver == SOLVER_AUTO && options->learning_rate == 0 && options->average && options->batch_size == 1 &&
		options->shuffle == SHUFFLE_CORGIPILE;
}

/* Whether the model may come from normal equations; the rows, when they are seen, may still be sparse or too wide for that. */
bool
may_be_exact(const Options *options)
{
	return options->loss == LOSS_SQUARED && options->l1 == 0 && (options->solver == SOLVER_EXACT || is_open(options));
}

/* Whether it may come from L-BFGS, if all rows turn out to lie in one window. A number of epochs asks for SGD. */
bool
may_be_fitted(const Options *options)
{
	return (options->loss == LOSS_LOGISTIC || options->loss == LOSS_SOFTMAX) && options->l1 == 0 &&
		(options->solver == SOLVER_LBFGS || (is_open(options) && !options->epochs_given));
}

void
require_full_passes(Options *options)
{
	if (options->solver == SOLVER_AUTO && is_open(options))
		options->solver = options->loss == LOSS_SQUARED ? SOLVER_EXACT : SOLVER_LBFGS;
	if (options->solver == SOLVER_SGD || (!may_be_exact(options) && !may_be_fitted(options)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 options->loss == LOSS_HINGE ? errmsg("models of groups are logistic, softmax or linear, not svm")
				 : errmsg("models of groups are learnt by L-BFGS or exactly, and these options ask for SGD"),
				 errhint(options->loss == LOSS_HINGE ? "TRAIN BY svm ... GROUP BY of penstock sql learns them."
						 : "Leave out learning_rate, rate, decay, power, l1, average, batch_size, shuffle and solver, or use TRAIN BY ... "
						 "GROUP BY of penstock sql.")));
	if (options->buffer_share > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the buffer of a group is no share of a table"), errhint("Give its size: \"buffer_size\": \"64MB\".")));
}

void
require_single(const Options *options)
{
	const char *given = options->penalty_count > 0 ? "a list of l2" 
		: options->flag_count > 0 ? "\"flags\"" : options->other_count > 0 ? "\"other\"" : options->keep_judged ? "\"judged\"" : NULL;

	if (given)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is for models of groups", given),
				 errhint("Give one l2; or name columns to group by: group_by => '{country}'.")));
}

bool
needs_survey(const Options *options, bool weighted)
{
	return options->standardize || options->average || options->l2 < 0 || may_be_fitted(options) ||
		options->balanced || options->weight_count > 0 || options->solver == SOLVER_EXACT || weighted;
}

static void
refuse_unfit(const Options *options)
{
	if ((options->solver == SOLVER_EXACT && !may_be_exact(options)) || (options->solver == SOLVER_LBFGS && !may_be_fitted(options)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 options->l1 > 0 ? errmsg("the solver \"%s\" knows no l1; it is %g", solvers[options->solver], options->l1)
				 : errmsg("the solver \"%s\" is for %s models, not for %s", solvers[options->solver],
						  options->solver == SOLVER_EXACT ? "linear" : "logistic and softmax", models[options->loss]),
				 errhint("Use \"solver\": \"sgd\".")));
}

Options *
read_options(const char *json)
{
	return read_options_of(json, LOSS_LOGISTIC);
}

Options *
read_options_of(const char *json, Loss usual)
{
	Jsonb	   *read = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(json)));
	Options    *options = palloc0(sizeof(Options));
	JsonbIterator *it;
	JsonbValue	value;
	JsonbIteratorToken token;
	char	   *name = NULL;

	options->loss = usual;
	options->decay = 0.95;
	options->power = 0.25;
	options->epochs = 20;
	options->batch_size = 1;
	options->intercept = true;
	options->standardize = true;
	options->average = true;
	options->l2 = -1;
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
	if (options->l2 < 0 && options->l1 > 0)
		options->l2 = 0;
	/* A schedule of one's own is one of plain steps; the squared loss has no bound on its slope, and wants smaller ones. */
	if (options->learning_rate == 0 && (options->rate != RATE_AUTO || options->decay != 0.95 || options->power != 0.25))
		options->learning_rate = options->loss == LOSS_SQUARED ? 0.01 : 0.1;
	refuse_unfit(options);
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
	if ((options->balanced || options->weight_count) && options->loss == LOSS_SQUARED)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"class_weight\" is for labels that are classes, and %s models predict a number", models[options->loss])));
	if (options->weight_count && options->weight_count != Max((int) options->outputs, 2))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"class_weight\" has %d weights for %d classes", options->weight_count, Max((int) options->outputs, 2))));
	return options;
}
