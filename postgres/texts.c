/*
 * texts.c: a hash table of texts with open addressing, and MurmurHash3.
 */
#include "texts.h"

#define FIRST_ROOM 64

uint32
murmur3(const char *text, uint32 size, uint32 seed)
{
	uint32		h = seed,
				k = 0;
	uint32		whole = size / 4 * 4;

	for (uint32 at = 0; at < whole; at += 4)
	{
		const unsigned char *b = (const unsigned char *) text + at;

		k = (b[0] | (uint32) b[1] << 8 | (uint32) b[2] << 16 | (uint32) b[3] << 24) * 0xCC9E2D51;
		h ^= (k << 15 | k >> 17) * 0x1B873593;
		h = (h << 13 | h >> 19) * 5 + 0xE6546B64;
	}
	k = 0;
	for (uint32 i = 0; i < size - whole; i++)
		k |= (uint32) (unsigned char) text[whole + i] << (8 * i);
	if (size > whole)
	{
		k *= 0xCC9E2D51;
		h ^= (k << 15 | k >> 17) * 0x1B873593;
	}
	h ^= size;
	h = (h ^ h >> 16) * 0x85EBCA6B;
	h = (h ^ h >> 13) * 0xC2B2AE35;
	return h ^ h >> 16;
}

bool
next_word(const char **at, const char *end, const char **word, uint32 *size)
{
	const char *p = *at;

#define BLANK(c) ((c) == ' ' || ((c) >= '\t' && (c) <= '\r'))
	while (p < end && BLANK(*p))
		p++;
	*word = p;
	while (p < end && !BLANK(*p))
		p++;
#undef BLANK
	*size = p - *word;
	*at = p;
	return *size > 0;
}

static void
make_slots(Texts *texts, uint32 count)
{
	if (texts->slots)
		pfree(texts->slots);
	texts->slots = MemoryContextAlloc(texts->context, sizeof(int32) * count);
	texts->mask = count - 1;
	memset(texts->slots, -1, sizeof(int32) * count);
}

Texts *
texts_make(MemoryContext context)
{
	Texts	   *texts = MemoryContextAllocZero(context, sizeof(Texts));

	texts->context = context;
	texts->room = FIRST_ROOM;
	texts->texts = MemoryContextAlloc(context, sizeof(char *) * FIRST_ROOM);
	texts->sizes = MemoryContextAlloc(context, sizeof(uint32) * FIRST_ROOM);
	texts->numbers = MemoryContextAlloc(context, sizeof(int64) * FIRST_ROOM);
	make_slots(texts, 2 * FIRST_ROOM);
	return texts;
}

/* Returns the slot that a text has, or would have. */
static uint32
slot_of(const Texts *texts, const char *text, uint32 size)
{
	uint32		slot = murmur3(text, size, 0) & texts->mask;

	while (texts->slots[slot] >= 0)
	{
		int32		place = texts->slots[slot];

		if (texts->sizes[place] == size && memcmp(texts->texts[place], text, size) == 0)
			break;
		slot = (slot + 1) & texts->mask;
	}
	return slot;
}

int32
texts_find(const Texts *texts, const char *text, uint32 size)
{
	return texts->slots[slot_of(texts, text, size)];
}

int32
texts_add(Texts *texts, const char *text, uint32 size)
{
	uint32		slot = slot_of(texts, text, size);
	int32		place = texts->slots[slot];

	if (place >= 0)
		return place;
	if (texts->count == texts->room)
	{
		texts->room *= 2;
		texts->texts = repalloc(texts->texts, sizeof(char *) * texts->room);
		texts->sizes = repalloc(texts->sizes, sizeof(uint32) * texts->room);
		texts->numbers = repalloc(texts->numbers, sizeof(int64) * texts->room);
		make_slots(texts, 2 * texts->room);
		for (int32 i = 0; i < texts->count; i++)
			texts->slots[slot_of(texts, texts->texts[i], texts->sizes[i])] = i;
		slot = slot_of(texts, text, size);
	}
	place = texts->count++;
	texts->texts[place] = MemoryContextAlloc(texts->context, size + 1);
	memcpy(texts->texts[place], text, size);
	texts->texts[place][size] = '\0';
	texts->sizes[place] = size;
	texts->numbers[place] = 0;
	texts->slots[slot] = place;
	return place;
}
