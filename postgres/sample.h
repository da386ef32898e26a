/*
 * sample.h: an even sample of packed rows, kept to measure the finished model on.
 */
#ifndef PENSTOCK_SAMPLE_H
#define PENSTOCK_SAMPLE_H

#include "postgres.h"

#define SAMPLE_ROWS 10000
#define SAMPLE_BYTES ((Size) 16 << 20)	/* that a sample may take, or more where the buffer is large */
#define ALL_KEYS ((uint64) 1 << 32)

/* Rows held out where nobody said how many: this share, about SAMPLE_ROWS at most, and none of fewer rows than the last. */
#define HELD_OUT_SHARE 0.1
#define FEWEST_TO_HOLD_OUT 500

typedef struct Sample
{
	float	   *words;			/* NULL until the first row */
	Size		capacity;		/* in words */
	Size		used;
	uint32		rows;
	uint32		room;			/* for rows */
	uint32	   *order;			/* where each begins */
	uint32	   *keys;
	uint64		below;			/* keys that are kept */
	void		(*left) (void *argument, const float *row); /* hears of rows that are not kept after all; may be NULL */
	void	   *argument;
} Sample;

/* A row's key: even over all 32-bit numbers, and the same whenever the row comes by. */
extern uint32 sample_key(uint64 seed, uint64 number, uint64 part);

/* Keeps rows whose keys are below a bound, which falls as room gets scarce. */
extern void sample_start(Sample *sample, uint64 below);
extern void sample_limit(Sample *sample, uint64 below);
extern bool sample_add(Sample *sample, MemoryContext context, Size most_bytes, const float *row, Size words, uint32 key);

/* The share of so many rows that is held out where nobody said which. */
extern double sample_share(uint64 rows);

#endif							/* PENSTOCK_SAMPLE_H */
