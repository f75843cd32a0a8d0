BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
CREATE TABLE annotator (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	pseudonym VARCHAR(32) NOT NULL, 
	token_hash VARCHAR(64), 
	created FLOAT NOT NULL, 
	consented FLOAT, 
	withdrawn FLOAT, 
	external_id TEXT, 
	PRIMARY KEY (id), 
	UNIQUE (pseudonym), 
	UNIQUE (token_hash), 
	UNIQUE (external_id)
);
CREATE TABLE assignment (
	id INTEGER NOT NULL, 
	annotator INTEGER NOT NULL, 
	item INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	flipped BOOLEAN NOT NULL, 
	revised BOOLEAN DEFAULT 0 NOT NULL, 
	done BOOLEAN DEFAULT 0 NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (annotator, item), 
	FOREIGN KEY(annotator) REFERENCES annotator (id), 
	FOREIGN KEY(item) REFERENCES item (id)
);
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	annotator INTEGER, 
	what TEXT NOT NULL, 
	detail JSON NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE item (
	id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	cluster TEXT NOT NULL, 
	is_check BOOLEAN NOT NULL, 
	owner INTEGER, 
	content JSON NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE ("key")
);
CREATE TABLE post (
	id INTEGER NOT NULL, 
	annotator INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	text TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (annotator, digest), 
	FOREIGN KEY(annotator) REFERENCES annotator (id)
);
CREATE TABLE reply (
	assignment INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	fields JSON NOT NULL, 
	seconds FLOAT NOT NULL, 
	active FLOAT, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (assignment, step), 
	FOREIGN KEY(assignment) REFERENCES assignment (id)
);
CREATE TABLE study (
	id INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	title TEXT NOT NULL, 
	settings JSON NOT NULL, 
	admin_hash TEXT NOT NULL, 
	created FLOAT NOT NULL, 
	secret TEXT, 
	state VARCHAR(16) DEFAULT 'open' NOT NULL, 
	public_hash VARCHAR(64), 
	PRIMARY KEY (id)
);
CREATE INDEX assignment_next ON assignment (annotator, done, position);
COMMIT;
