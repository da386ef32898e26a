/*
 * sample.h: an even sample of packed rows, kept to measure the finished model on.
 */
#ifndef PENSTOCK_SAMPLE_H
#define PENSTOCK_SAMPLE_H

#include "postgres.h"

#define SAMPLE_ROWS 10000

typedef struct Sample
{
	float	   *words;			/* NULL until the first row */
	Size		capacity;		/* in words */
	Size		used;
	uint32		rows;
	uint32	   *order;			/* where each begins */
	uint32	   *keys;
	uint64		below;			/* keys that are kept */
	uint64		seed;
} Sample;

extern void sample_start(Sample *sample, uint64 seed);
extern void sample_add(Sample *sample, MemoryContext context, Size most_bytes, const float *row, Size words, uint64 number);

#endif							/* PENSTOCK_SAMPLE_H */
