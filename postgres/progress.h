/*
 * progress.h: how far trainings are, for other sessions to see in penstock.progress.
 */
#ifndef PENSTOCK_PROGRESS_H
#define PENSTOCK_PROGRESS_H

#include "postgres.h"

typedef enum Phase
{
	PHASE_SURVEY,
	PHASE_SGD,
	PHASE_LBFGS
} Phase;

/* A training's place in shared memory; NULL where there is none, and what is told of it is lost. */
typedef struct Progress Progress;

/* Takes a place, which is free again when the memory context is reset, also after an error. */
extern Progress *progress_start(MemoryContext context, const char *model, const char *kind);

/* An epoch or a pass begins: one of `epochs` (0: not known), over so many rows (0: not known), after one of that loss (NaN: none). */
extern void progress_epoch(Progress *progress, Phase phase, int epoch, int epochs, uint64 rows, double loss);

/* A window of rows is learnt from. */
extern void progress_window(Progress *progress, uint32 rows, double loss);

#endif							/* PENSTOCK_PROGRESS_H */
