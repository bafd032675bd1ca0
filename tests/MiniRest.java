import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.rest.RESTCatalogServer;
import org.apache.paimon.rest.RESTToken;
import org.apache.paimon.rest.auth.BearTokenAuthProvider;
import org.apache.paimon.rest.responses.ConfigResponse;

/** Paimon's own REST catalog server on a free port of the loopback: arguments are its folder, its warehouse's name and
 * the bearer token.
 *
 * Prints its URL on a line of its own, and ends when its standard input does. Lines there are commands, each answered by
 * a line: {@code deny db.t} (nobody may use the table), {@code data-token db.t expiresAtMillis key value}.
 */
public final class MiniRest {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> defaults = new HashMap<>();
        defaults.put("prefix", "paimon");
        defaults.put("warehouse", arguments[1]);
        defaults.put("header.X-Tried", "yes");
        RESTCatalogServer server = new RESTCatalogServer(
                arguments[0], new BearTokenAuthProvider(arguments[2]),
                new ConfigResponse(defaults, Collections.emptyMap()), arguments[1]);
        server.start();
        System.out.println("ready " + server.getUrl());
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "deny":
                    server.addNoPermissionTable(Identifier.fromString(words[1]));
                    break;
                case "data-token":
                    server.setDataToken(
                            Identifier.fromString(words[1]),
                            new RESTToken(Collections.singletonMap(words[3], words[4]), Long.parseLong(words[2])));
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
            System.out.println("done");
        }
        server.shutdown();
        System.exit(0);
    }
}
