/*
 * sample.c: keeps up to ten thousand rows, each as likely as any other, of a pass whose length is not known.
 *
 * Every row has a random key. Where there is no more room the limit that keys must be below is halved, and the rows above it go.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "kernels.h"
#include "sample.h"

#define FIRST_ROOM 64			/* rows; groups are many, and most of them small */

uint32
sample_key(uint64 seed, uint64 number, uint64 part)
{
	return (uint32) (mixed_seed(seed, number, part) >> 32);
}

double
sample_share(uint64 rows)
{
	return rows < FEWEST_TO_HOLD_OUT ? 0 : Min(HELD_OUT_SHARE, (double) SAMPLE_ROWS / rows);
}

void
sample_start(Sample *sample, uint64 below)
{
	sample->used = sample->rows = 0;
	sample->below = below;
}

/* Lowers the limit that keys must be below; the rows above it go. */
void
sample_limit(Sample *sample, uint64 below)
{
	uint32		kept = 0;
	Size		used = 0;

	sample->below = Min(sample->below, below);
	for (uint32 i = 0; i < sample->rows; i++)
	{
		Size		from = sample->order[i],
					to = i + 1 < sample->rows ? sample->order[i + 1] : sample->used;

		if (sample->keys[i] >= sample->below)
		{
			if (sample->left)
				sample->left(sample->argument, sample->words + from);
			continue;
		}
		memmove(sample->words + used, sample->words + from, (to - from) * sizeof(float));
		sample->keys[kept] = sample->keys[i];
		sample->order[kept++] = (uint32) used;
		used += to - from;
	}
	sample->rows = kept;
	sample->used = used;
}

static void *
grown(MemoryContext context, void *array, Size size)
{
	return array ? repalloc_huge(array, size) : MemoryContextAllocHuge(context, size);
}

/* Makes room for a row; false where there can be no more. */
static bool
make_room(Sample *sample, MemoryContext context, Size most, Size words)
{
	if (sample->rows == SAMPLE_ROWS || sample->used + words > most)
		return false;
	if (sample->rows == sample->room)
	{
		sample->room = Min(Max(2 * sample->room, FIRST_ROOM), SAMPLE_ROWS);
		sample->order = grown(context, sample->order, sample->room * sizeof(uint32));
		sample->keys = grown(context, sample->keys, sample->room * sizeof(uint32));
	}
	if (sample->used + words > sample->capacity)
	{
		sample->capacity = Min(Max(2 * sample->capacity, FIRST_ROOM * words), most);
		sample->words = grown(context, sample->words, sample->capacity * sizeof(float));
	}
	return true;
}

/* Keeps a row, if there is room; false where it is not kept. */
bool
sample_add(Sample *sample, MemoryContext context, Size most_bytes, const float *row, Size words, uint32 key)
{
	Size		most = most_bytes / sizeof(float);

	if (words > most)
		return false;
	while (key < sample->below && !make_room(sample, context, most, words))
		sample_limit(sample, sample->below / 2);
	if (key >= sample->below)
		return false;
	memcpy(sample->words + sample->used, row, words * sizeof(float));
	sample->keys[sample->rows] = key;
	sample->order[sample->rows++] = (uint32) sample->used;
	sample->used += words;
	return true;
}
