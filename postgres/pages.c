/*
 * pages.c: the visible rows of a heap table, by pages in whatever order they are asked for.
 *
 * Pages come through the buffer manager by a ring of buffers, as in any large scan, from PostgreSQL 17 on by a read stream
 * that runs ahead over the ends of blocks. As a block is begun the system is told of all of the next: what a stream asks
 * for at a time is less than a disk gives its best at. What is visible is the heap's own affair.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "storage/fd.h"
#include "storage/smgr.h"
#include "utils/rel.h"
#include "utils/spccache.h"

#include "pages.h"

#define FORESEEN (4 << 20)		/* bytes that the system is told of ahead */

#ifdef USE_PREFETCH
#if PG_VERSION_NUM >= 170000
static void
prefetch(Relation table, BlockNumber first, BlockNumber count)
{
	if ((io_direct_flags & IO_DIRECT_DATA) == 0)
		smgrprefetch(RelationGetSmgr(table), MAIN_FORKNUM, first, count);
}
#else
#if PG_VERSION_NUM < 160000
#define smgr_rlocator smgr_rnode
#endif

/* The storage manager takes one page at a time before PostgreSQL 17, and a disk gives little by single pages. */
static void
prefetch(Relation table, BlockNumber first, BlockNumber count)
{
	char	   *path = relpath(RelationGetSmgr(table)->smgr_rlocator, MAIN_FORKNUM);

	while (count > 0)
	{
		BlockNumber segment = first / RELSEG_SIZE,
					from = first % RELSEG_SIZE,
					here = Min(count, RELSEG_SIZE - from);
		char	   *name = segment ? psprintf("%s.%u", path, segment) : pstrdup(path);
		File		file = PathNameOpenFile(name, O_RDONLY | PG_BINARY);

		if (file >= 0)
		{
			FilePrefetch(file, (off_t) from * BLCKSZ, (off_t) here * BLCKSZ, 0);
			FileClose(file);
		}
		pfree(name);
		first += here;
		count -= here;
	}
	pfree(path);
}
#endif
#endif

/* Has the system read a block that is not wanted yet. */
void
pages_foretell(Pages *pages, uint32 block)
{
#ifdef USE_PREFETCH
	BlockNumber first = block / pages->parts * pages->block_pages;

	if (pages->foretells)
		prefetch(pages->table, first, Min(pages->block_pages, pages->count - first));
#endif
}

/* How many blocks ahead the system is told of: one, or as many small ones as keep a disk busy. */
uint32
pages_foresight(const Pages *pages)
{
	return Max(1, FORESEEN / ((int64) pages->block_pages * BLCKSZ));
}

uint32
pages_blocks(const Pages *pages)
{
	return (uint32) (((uint64) pages->count * pages->parts + pages->block_pages - 1) / pages->block_pages);
}

/* The page to be read after those that were asked for; InvalidBlockNumber after the last. */
static BlockNumber
next_page(Pages *pages)
{
	while (pages->page >= pages->page_end)
	{
		if (pages->drawn >= pages->draw_count)
			return InvalidBlockNumber;
		pages->page = pages->draws[pages->drawn++] / pages->parts * pages->block_pages;
		pages->page_end = Min((int64) pages->page + pages->block_pages, pages->count);
		pages->blocks_read++;
		pages->foretold = Max(pages->foretold, pages->drawn);
		while (pages->foretold < Min(pages->drawn + pages_foresight(pages), pages->draw_count))
			pages_foretell(pages, pages->draws[pages->foretold++]);
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
	BlockNumber page = next_page(pages);

	if (page != InvalidBlockNumber)
	{
		heapgetpage((TableScanDesc) pages->scan, page);
		return true;
	}
	if (BufferIsValid(pages->scan->rs_cbuf))
		ReleaseBuffer(pages->scan->rs_cbuf);
	pages->scan->rs_cbuf = InvalidBuffer;
	return false;
}
#endif

/* Begins to read some blocks, in the order given. */
void
pages_open(Pages *pages, const uint32 *draws, uint32 count)
{
	pages->draws = draws;
	pages->draw_count = count;
	pages->drawn = pages->foretold = pages->taken = 0;
	pages->page = pages->page_end = 0;
	pages->line = pages->line_end = 0;
	if (pages->scan == NULL)
	{
		/* It settles the snapshot, the ring of buffers and predicate locks; its pages are told by us. */
		pages->scan = (HeapScanDesc) table_beginscan_strat(pages->table, pages->snapshot, 0, NULL, true, false);
		pages->tuple.t_tableOid = RelationGetRelid(pages->table);
		/* Looked up here, as nothing may be looked up while a stream asks for pages. */
		pages->foretells = get_tablespace_io_concurrency(pages->table->rd_rel->reltablespace) > 0;
	}
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

	while (pages->line >= pages->line_end)
	{
		CHECK_FOR_INTERRUPTS();
		pages->line = pages->line_end = 0;
		if (!load_page(pages))
		{
			ExecClearTuple(slot);
			return false;
		}
		(*pages->loaded)++;
		pages->line_end = (int) scan->rs_ntuples;
		if (pages->parts > 1)
		{
			/* Each block is of one page, so they come as they were drawn. */
			uint32		part = pages->draws[pages->taken++] % pages->parts;

			pages->line = scan->rs_ntuples * part / pages->parts;
			pages->line_end = scan->rs_ntuples * (part + 1) / pages->parts;
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
