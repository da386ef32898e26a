/*
 * pages.c: the visible rows of a heap table, by pages in whatever order they are asked for.
 *
 * Pages come through the buffer manager by a ring of buffers, as in any large scan: from PostgreSQL 17 by a read stream
 * that runs ahead over the ends of blocks, before that with the first pages of the next block asked for early. What is
 * visible is the heap's own affair.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "pages.h"

#define PREFETCHED 32			/* pages asked for at a block's start; the system reads on by itself from there */

/* The page to be read after those that were asked for; InvalidBlockNumber after the last. */
static BlockNumber
next_page(Pages *pages)
{
	while (pages->page >= pages->page_end)
	{
		if (pages->drawn >= pages->draw_count)
			return InvalidBlockNumber;
		pages->page = pages->draws[pages->drawn++] * pages->block_pages;
		pages->page_end = Min((int64) pages->page + pages->block_pages, pages->count);
		pages->blocks_read++;
	}
	return pages->page++;
}

#if PG_VERSION_NUM >= 170000
static BlockNumber
stream_page(ReadStream *stream, void *pages, void *unused)
{
	return next_page(pages);
}

static bool
load_page(Pages *pages)
{
	Buffer		buffer = read_stream_next_buffer(pages->stream, NULL);

	if (BufferIsValid(pages->scan->rs_cbuf))
		ReleaseBuffer(pages->scan->rs_cbuf);
	pages->scan->rs_cbuf = buffer;
	if (!BufferIsValid(buffer))
		return false;
	pages->scan->rs_cblock = BufferGetBlockNumber(buffer);
	heap_prepare_pagescan((TableScanDesc) pages->scan);
	return true;
}
#else
static bool
load_page(Pages *pages)
{
	BlockNumber page;

	while (pages->queued < QUEUED)
	{
		page = next_page(pages);
		if (page == InvalidBlockNumber)
			break;
		pages->queue[(pages->taken + pages->queued++) % QUEUED] = page;
#ifdef USE_PREFETCH
		if (!pages->in_order && page % pages->block_pages < PREFETCHED)
			PrefetchBuffer(pages->table, MAIN_FORKNUM, page);
#endif
	}
	if (pages->queued == 0)
	{
		if (BufferIsValid(pages->scan->rs_cbuf))
			ReleaseBuffer(pages->scan->rs_cbuf);
		pages->scan->rs_cbuf = InvalidBuffer;
		return false;
	}
	page = pages->queue[pages->taken];
	pages->taken = (pages->taken + 1) % QUEUED;
	pages->queued--;
	heapgetpage((TableScanDesc) pages->scan, page);
	return true;
}
#endif

/* Begins to read some blocks, in the order given. */
void
pages_open(Pages *pages, const uint32 *draws, uint32 count)
{
	pages->draws = draws;
	pages->draw_count = count;
	pages->drawn = 0;
	pages->page = pages->page_end = 0;
	pages->line = 0;
	if (pages->scan == NULL)
	{
		/* It settles the snapshot, the ring of buffers and predicate locks; its pages are told by us. */
		pages->scan = (HeapScanDesc) table_beginscan_strat(pages->table, pages->snapshot, 0, NULL, true, false);
		pages->tuple.t_tableOid = RelationGetRelid(pages->table);
	}
	pages->scan->rs_ntuples = 0;
#if PG_VERSION_NUM >= 170000
	if (pages->stream)
		read_stream_reset(pages->stream);
	else
	{
		MemoryContext before = MemoryContextSwitchTo(pages->context);
		int			flags = pages->in_order ? READ_STREAM_SEQUENTIAL : READ_STREAM_DEFAULT;

#if PG_VERSION_NUM >= 180000
		flags |= READ_STREAM_USE_BATCHING;
#endif
		pages->stream = read_stream_begin_relation(flags, pages->scan->rs_strategy, pages->table, MAIN_FORKNUM,
												   stream_page, pages, 0);
		MemoryContextSwitchTo(before);
	}
#else
	pages->queued = pages->taken = 0;
#endif
}

/* Puts the next visible row of those blocks into a slot; false at their end. */
bool
pages_next(Pages *pages, TupleTableSlot *slot)
{
	HeapScanDesc scan = pages->scan;
	Page		page;
	OffsetNumber offset;
	ItemId		item;

	while (pages->line >= (int) scan->rs_ntuples)
	{
		CHECK_FOR_INTERRUPTS();
		pages->line = 0;
		scan->rs_ntuples = 0;
		if (!load_page(pages))
		{
			ExecClearTuple(slot);
			return false;
		}
	}
	page = BufferGetPage(scan->rs_cbuf);
	offset = scan->rs_vistuples[pages->line++];
	item = PageGetItemId(page, offset);
	pages->tuple.t_data = (HeapTupleHeader) PageGetItem(page, item);
	pages->tuple.t_len = ItemIdGetLength(item);
	ItemPointerSet(&pages->tuple.t_self, scan->rs_cblock, offset);
	pgstat_count_heap_getnext(scan->rs_base.rs_rd);
	ExecStoreBufferHeapTuple(&pages->tuple, slot, scan->rs_cbuf);
	return true;
}

void
pages_close(Pages *pages)
{
#if PG_VERSION_NUM >= 170000
	if (pages->stream)
		read_stream_end(pages->stream);
#endif
	if (pages->scan)
		table_endscan((TableScanDesc) pages->scan);
}
