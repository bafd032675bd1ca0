import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.TUGIBasedProcessor;
import org.apache.hadoop.hive.metastore.api.ThriftHiveMetastore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.hadoop.hive.metastore.txn.TxnStore;
import org.apache.hadoop.hive.metastore.txn.TxnUtils;
import org.apache.hadoop.hive.thrift.TUGIContainingTransport;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/** A Hive metastore on a free port of the loopback, its database in memory, which lets a user see only the tables whose
 * folders that user may read. Arguments: a folder; after how many seconds it forgets a lock whose holder is silent.
 *
 * Prints its port on a line of its own, and ends when its standard input does.
 */
public final class MiniHive {
    private static final String AUTHORIZATION = "org.apache.hadoop.hive.ql.security.authorization.";

    public static void main(String[] arguments) throws Exception {
        Path folder = Paths.get(arguments[0]).toAbsolutePath();
        System.setProperty("derby.stream.error.file", folder.resolve("derby.log").toString());
        HiveConf conf = new HiveConf();
        conf.set("javax.jdo.option.ConnectionURL", "jdbc:derby:memory:metastore;create=true");
        conf.set("datanucleus.schema.autoCreateAll", "true");
        conf.set("datanucleus.connectionPoolingType", "hikaricp");
        conf.set("hive.metastore.schema.verification", "false");
        conf.set("hive.metastore.warehouse.dir", "file:" + folder.resolve("warehouse"));
        conf.set("bucket.folder", folder.resolve("buckets").toString());
        conf.setClassLoader(MiniHive.class.getClassLoader());
        conf.setClass("fs.s3.impl", Buckets.class, FileSystem.class);
        conf.set("hive.txn.timeout", arguments[1] + "s");
        conf.set("hive.metastore.pre.event.listeners", AUTHORIZATION + "AuthorizationPreEventListener");
        conf.set("hive.security.metastore.authorization.manager", AUTHORIZATION + "StorageBasedAuthorizationProvider");
        conf.set("hive.security.metastore.authorization.auth.reads", "true");
        conf.unset("hive.in.test");
        TxnDbUtil.prepDb(conf);

        ThriftHiveMetastore.Iface handler = HiveMetaStore.newRetryingHMSHandler("metastore", conf, true);
        handler.get_all_databases();
        TServerSocket socket = new TServerSocket(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        TThreadPoolServer server = new TThreadPoolServer(
            new TThreadPoolServer.Args(socket)
                .processor(new TUGIBasedProcessor<>(handler))
                .transportFactory(new TUGIContainingTransport.Factory()));
        background(server::serve);
        background(() -> forgetSilentLocks(TxnUtils.getTxnStore(conf)));
        System.out.println("ready " + socket.getServerSocket().getLocalPort());
        while (System.in.read() >= 0) { }
        System.exit(0);
    }

    private static void background(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
    }

    /** What AcidHouseKeeperService does in a whole Hive. */
    private static void forgetSilentLocks(TxnStore store) {
        while (true) {
            store.performTimeOuts();
            try {
                TimeUnit.MILLISECONDS.sleep(500);
            } catch (InterruptedException ended) {
                return;
            }
        }
    }

    /** What the metastore sees of S3, which PySpark brings no file system for: folders that it makes itself. */
    public static final class Buckets extends RawLocalFileSystem {
        private URI uri;

        @Override
        public void initialize(URI uri, Configuration conf) throws IOException {
            super.initialize(uri, conf);
            this.uri = URI.create(uri.getScheme() + "://" + uri.getAuthority());
            pathToFile(new org.apache.hadoop.fs.Path("/")).mkdirs();
        }

        @Override
        public URI getUri() {
            return uri == null ? super.getUri() : uri;
        }

        @Override
        public File pathToFile(org.apache.hadoop.fs.Path path) {
            return uri == null
                ? super.pathToFile(path)
                : new File(getConf().get("bucket.folder"), uri.getAuthority() + path.toUri().getPath());
        }

        /** Everybody may do everything. */
        @Override
        public void access(org.apache.hadoop.fs.Path path, FsAction action) { }
    }
}
