/*
 * catalogue.h: the table of models as the extension's C code finds it, and search paths of its own statements.
 */
#ifndef PENSTOCK_CATALOGUE_H
#define PENSTOCK_CATALOGUE_H

#include "storage/lockdefs.h"

/* Returns the table, locked and found to run no code of others; InvalidOid where there is none. */
extern Oid	catalogue_checked(LOCKMODE lock, bool any_owner);

/* Sets the search path until path_restore, or the end of a failed transaction; NULL stands for pg_catalog alone. */
extern int	path_set(const char *path);
extern void path_restore(int level);

#endif							/* PENSTOCK_CATALOGUE_H */
