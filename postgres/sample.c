/*
 * sample.c: keeps up to ten thousand rows, each as likely as any other, of a pass whose length is not known.
 *
 * Every row has a random key. Where there is no more room the limit that keys must be below is halved, and the rows above it go.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "kernels.h"
#include "sample.h"

#define ALL ((uint64) 1 << 32)

void
sample_start(Sample *sample, uint64 seed)
{
	sample->used = sample->rows = 0;
	sample->below = ALL;
	sample->seed = seed;
}

static void
thin_out(Sample *sample)
{
	uint32		kept = 0;
	Size		used = 0;

	sample->below /= 2;
	for (uint32 i = 0; i < sample->rows; i++)
	{
		Size		from = sample->order[i],
					to = i + 1 < sample->rows ? sample->order[i + 1] : sample->used;

		if (sample->keys[i] >= sample->below)
			continue;
		memmove(sample->words + used, sample->words + from, (to - from) * sizeof(float));
		sample->keys[kept] = sample->keys[i];
		sample->order[kept++] = (uint32) used;
		used += to - from;
	}
	sample->rows = kept;
	sample->used = used;
}

void
sample_add(Sample *sample, MemoryContext context, Size most_bytes, const float *row, Size words, uint64 number)
{
	uint32		key = (uint32) (mixed_seed(sample->seed, number, 1) >> 32);

	if (key >= sample->below)
		return;
	if (sample->words == NULL)
	{
		/* Sparse rows differ in length, so there is room for some that are longer than the first. */
		sample->capacity = Min(2 * words * SAMPLE_ROWS, most_bytes / sizeof(float));
		sample->words = MemoryContextAllocHuge(context, Max(sample->capacity, 1) * sizeof(float));
		sample->order = MemoryContextAlloc(context, SAMPLE_ROWS * sizeof(uint32));
		sample->keys = MemoryContextAlloc(context, SAMPLE_ROWS * sizeof(uint32));
	}
	if (words > sample->capacity)
		return;
	while (sample->rows == SAMPLE_ROWS || sample->used + words > sample->capacity)
		thin_out(sample);
	if (key >= sample->below)
		return;
	memcpy(sample->words + sample->used, row, words * sizeof(float));
	sample->keys[sample->rows] = key;
	sample->order[sample->rows++] = (uint32) sample->used;
	sample->used += words;
}
