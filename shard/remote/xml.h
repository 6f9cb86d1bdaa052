/* SPDX-License-Identifier: Apache-2.0 */
/* Takes single elements out of the XML of S3 and STS.  Their answers are flat and have no attributes in what is read
 * here, so a parser is not needed.
 *
 * Threads: any. */
#ifndef DDPFS_SHARD_REMOTE_XML_H
#define DDPFS_SHARD_REMOTE_XML_H

/* Returns the text of the first element <name>, with &amp; and the like decoded; NULL: there is none, or no memory.
 * The caller frees it.  If ret_rest is not NULL, it is set behind the element. */
char *remote_xml_element(const char *xml, const char *name, const char **ret_rest);

/* The same, not decoded: for an element that holds others, whose texts are decoded when they are taken out of it. */
char *remote_xml_outer(const char *xml, const char *name, const char **ret_rest);

/* Copies the text of the first element <name> into room of `size` bytes, printable as base_err_quote makes it: for
 * messages.  "": there is none, or no memory. */
void remote_xml_quoted(const char *xml, const char *name, char *room, unsigned size);

#endif
