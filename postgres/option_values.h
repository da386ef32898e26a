/*
 * option_values.h: how values of options are read.
 */
#ifndef PENSTOCK_OPTION_VALUES_H
#define PENSTOCK_OPTION_VALUES_H

#include "utils/jsonb.h"

#include "penstock.h"

NEVER_RETURNS extern void option_refuse(const char *name, const JsonbValue *value, const char *wanted);
extern double option_number(const char *name, const JsonbValue *value, double least, double most, const char *wanted);
extern double option_whole(const char *name, const JsonbValue *value, double least, double most, const char *wanted);
extern char *option_text(const char *name, const JsonbValue *value, const char *wanted);
extern bool option_flag(const char *name, const JsonbValue *value);
extern bool option_is_auto(const JsonbValue *value);

/* Gives the place of a value among words. */
extern int	option_word(const char *name, const JsonbValue *value, const char *const *words, int count);

/* Reads "10MB", "64KiB" or a plain number; a share such as "10%" only where there is a place for it. */
extern int64 option_size(const char *name, const JsonbValue *value, double *share);

#endif							/* PENSTOCK_OPTION_VALUES_H */
