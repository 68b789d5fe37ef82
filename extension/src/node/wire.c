/*-------------------------------------------------------------------------
 *
 * wire.c
 *	  Reading and writing the little-endian formats of docs/agent-protocol.md.
 *
 * Writers append to a StringInfo.  Readers never pass the end of their bytes:
 * a message that ends too early raises ERROR 08P01, whoever sent it.
 *
 * Copyright 2026 The Onetrip authors
 * SPDX-License-Identifier: Apache-2.0
 *
 *-------------------------------------------------------------------------
 */
#include "node/node.h"

void
ot_put_u8(StringInfo buf, uint8 v)
{
	appendStringInfoCharMacro(buf, (char) v);
}

static inline void
wire_put_little_endian(StringInfo buf, uint64 v, int nbytes)
{
	char		bytes[8];

	for (int i = 0; i < nbytes; i++)
		bytes[i] = (char) (v >> (8 * i));
	appendBinaryStringInfoNT(buf, bytes, nbytes);
}

void
ot_put_u16(StringInfo buf, uint16 v)
{
	wire_put_little_endian(buf, v, 2);
}

void
ot_put_u32(StringInfo buf, uint32 v)
{
	wire_put_little_endian(buf, v, 4);
}

void
ot_put_u64(StringInfo buf, uint64 v)
{
	wire_put_little_endian(buf, v, 8);
}

void
ot_put_str(StringInfo buf, const char *s)
{
	size_t		len = strlen(s);

	if (len > PG_UINT16_MAX)
		ereport(ERROR,
				(errcode(OT_ERR_TOO_LARGE),
				 errmsg("name or setting of %zu bytes is too long to replicate", len)));
	ot_put_u16(buf, (uint16) len);
	appendBinaryStringInfo(buf, s, (int) len);
}

void
ot_put_txn(StringInfo buf, OtTxnId txn)
{
	ot_put_u32(buf, txn.node);
	ot_put_u64(buf, txn.incarnation);
	ot_put_u64(buf, txn.sequence);
}

/* Is there anything left to read? */
bool
ot_has_more(OtReader *r)
{
	return r->at < r->end || (r->more != NULL && r->more(r, 1));
}

const char *
ot_get_bytes(OtReader *r, uint32 len)
{
	const char *at = r->at;

	if ((size_t) (r->end - r->at) < len && (r->more == NULL || !r->more(r, len)))
		ereport(ERROR,
				(errcode(OT_ERR_PROTOCOL),
				 errmsg("message from the node ends too early: %u bytes wanted, %zu left",
						len, (size_t) (r->end - r->at))));
	r->at += len;
	return at;
}

static inline uint64
wire_get_little_endian(OtReader *r, int nbytes)
{
	const unsigned char *bytes = (const unsigned char *) ot_get_bytes(r, nbytes);
	uint64		v = 0;

	for (int i = 0; i < nbytes; i++)
		v |= (uint64) bytes[i] << (8 * i);
	return v;
}

uint8
ot_get_u8(OtReader *r)
{
	return (uint8) wire_get_little_endian(r, 1);
}

uint16
ot_get_u16(OtReader *r)
{
	return (uint16) wire_get_little_endian(r, 2);
}

uint32
ot_get_u32(OtReader *r)
{
	return (uint32) wire_get_little_endian(r, 4);
}

uint64
ot_get_u64(OtReader *r)
{
	return wire_get_little_endian(r, 8);
}

char *
ot_get_str(OtReader *r)
{
	uint16		len = ot_get_u16(r);

	return pnstrdup(ot_get_bytes(r, len), len);
}

OtTxnId
ot_get_txn(OtReader *r)
{
	OtTxnId		txn;

	txn.node = ot_get_u32(r);
	txn.incarnation = ot_get_u64(r);
	txn.sequence = ot_get_u64(r);
	return txn;
}

/* Writes into out, of OT_TXN_ID_TEXT_MAX bytes; allocates nothing. */
char *
ot_txn_to_text(OtTxnId txn, char *out)
{
	snprintf(out, OT_TXN_ID_TEXT_MAX, "%u-" OT_UINT64_HEX "-" OT_UINT64_HEX,
			 txn.node, txn.incarnation, txn.sequence);
	return out;
}

/*
 * Accepts what ot_txn_to_text() writes and nothing else: another spelling may
 * be a typing error.
 */
bool
ot_txn_from_text(const char *text, OtTxnId *txn)
{
	char		again[OT_TXN_ID_TEXT_MAX];
	unsigned int node;
	unsigned long incarnation;
	unsigned long sequence;

	StaticAssertStmt(sizeof(unsigned long) == 8, "a 64-bit platform");
	if (sscanf(text, "%10u-%16lx-%16lx", &node, &incarnation, &sequence) != 3)
		return false;
	txn->node = node;
	txn->incarnation = incarnation;
	txn->sequence = sequence;
	return strcmp(text, ot_txn_to_text(*txn, again)) == 0;
}
