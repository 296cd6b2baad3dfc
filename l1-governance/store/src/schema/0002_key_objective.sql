-- The objective a key names; that of its project when absent.
ALTER TABLE virtual_key ADD COLUMN objective TEXT;
